// The C border: each function is a few lines over Session; an exception becomes a code and a text.
#include "dl_comm.h"

#include <cstring>
#include <string>
#include <vector>

#include "error.h"
#include "process.h"
#include "reducer.h"

static_assert(DL_COMM_UINT8 == static_cast<int>(dl::Dtype::uint8), "dlDataType_t lists the types of Dtype in its order");

namespace {

thread_local std::string last_error;

int failed(int code, const std::string& text) {
  last_error = text;
  return code;
}

template <class Work>
int border(Work work) {
  try {
    work();
    return DL_COMM_OK;
  } catch (const dl::CommError& error) {
    const bool disagreed = dynamic_cast<const dl::Disagreement*>(&error) != nullptr;
    return failed(disagreed ? DL_COMM_ERR_DISAGREE : DL_COMM_ERR_COMM,
                  error.what() + (error.hint().empty() ? "" : "; " + error.hint()));
  } catch (const std::exception& error) {
    return failed(DL_COMM_ERR_OTHER, error.what());
  }
}

template <class Ask>
int number(Ask ask) {
  int value = -1;
  border([&] { value = ask(dl::the_session()); });
  return value;
}

// The arrays of all towers, checked to be of the same lengths and types.
template <class Length>
struct Towers {
  Towers(void*** tensors, Length** lengths, dlDataType_t** dtypes, const int* counts, int towers) {
    if (towers < 1) throw dl::CommError("there are " + std::to_string(towers) + " towers", "at least one is needed");
    for (int t = 0; t < towers; ++t) {
      if (counts[t] < 0) throw dl::CommError("tower " + std::to_string(t) + " has " + std::to_string(counts[t]) + " arrays");
      if (counts[t] != counts[0])
        throw dl::CommError("tower " + std::to_string(t) + " has " + std::to_string(counts[t]) + " arrays, tower 0 has " +
                                std::to_string(counts[0]), "every tower holds the same arrays");
      std::vector<dl::Buffer> buffers;
      for (int i = 0; i < counts[t]; ++i) {
        const std::string which = "array " + std::to_string(i) + " of tower " + std::to_string(t);
        if (lengths[t][i] < 0) throw dl::CommError(which + " has length " + std::to_string(lengths[t][i]));
        const int type = static_cast<int>(dtypes[t][i]);
        if (type < 0 || type >= dl::dtype_count)
          throw dl::CommError(which + " has the type " + std::to_string(type), "types are those of dlDataType_t");
        if (lengths[t][i] != lengths[0][i] || dtypes[t][i] != dtypes[0][i])
          throw dl::CommError(which + " is not like that of tower 0", "every tower holds the same arrays");
        if (tensors[t][i] == nullptr && lengths[t][i] > 0) throw dl::CommError(which + " is NULL");
        buffers.push_back({static_cast<char*>(tensors[t][i]), static_cast<std::size_t>(lengths[t][i]),
                           static_cast<dl::Dtype>(type)});
      }
      of.push_back(std::move(buffers));
    }
  }

  void average() const {
    for (std::size_t i = 0; of.size() > 1 && i < of[0].size(); ++i) {
      std::vector<void*> out;
      for (const auto& tower : of) out.push_back(tower[i].data);
      const std::vector<const void*> in(out.begin(), out.end());
      const int n = static_cast<int>(out.size());
      dl::reducer(of[0][i].dtype, dl::Op::mean, 0)
          .reduce(out.data(), 1, 0, in.data(), n, of[0][i].count, static_cast<double>(n));
    }
  }

  void share() const {
    for (std::size_t t = 1; t < of.size(); ++t)
      for (std::size_t i = 0; i < of[0].size(); ++i)
        if (of[0][i].count > 0) std::memcpy(of[t][i].data, of[0][i].data, of[0][i].count * dl::width(of[0][i].dtype));
  }

  std::vector<std::vector<dl::Buffer>> of;
};

template <class Length>
int gradients(void*** tensors, Length** lengths, dlDataType_t** dtypes, const int* counts, int ntowers, int team) {
  return border([&] {
    const Towers<Length> towers(tensors, lengths, dtypes, counts, ntowers);
    towers.average();
    const std::string call = "gradients (mean over " + std::to_string(ntowers) + " towers)";
    dl::the_session().allreduce({call, towers.of[0], {}}, dl::Op::mean, team);
    towers.share();
  });
}

template <class Length>
int broadcast(void*** tensors, Length** lengths, dlDataType_t** dtypes, const int* counts, int ntowers, int root) {
  return border([&] {
    const Towers<Length> towers(tensors, lengths, dtypes, counts, ntowers);
    dl::the_session().broadcast({"broadcast from rank " + std::to_string(root), towers.of[0], {}}, root);
    towers.share();
  });
}

}  // namespace

extern "C" {

int dl_comm_init_mpi(void) { return border([] { dl::join("", ""); }); }
int dl_comm_init(void) { return dl_comm_init_mpi(); }
int dl_comm_finalize(void) { return border([] { dl::leave(true); }); }

int dl_create_team(int team, int threads, int precision) {
  return border([=] { dl::the_session().create_team(team, threads, precision); });
}
int dl_comm_create_team(int team, int threads, int precision) { return dl_create_team(team, threads, precision); }

int dl_comm_gradients(void*** tensors, int** lengths, dlDataType_t** dtypes, int* counts, int ntowers, int team) {
  return gradients(tensors, lengths, dtypes, counts, ntowers, team);
}
int dl_comm_gradients64(void*** tensors, int64_t** lengths, dlDataType_t** dtypes, int* counts, int ntowers, int team) {
  return gradients(tensors, lengths, dtypes, counts, ntowers, team);
}
int dl_comm_broadcast(void*** tensors, int** lengths, dlDataType_t** dtypes, int* counts, int ntowers, int root) {
  return broadcast(tensors, lengths, dtypes, counts, ntowers, root);
}
int dl_comm_broadcast64(void*** tensors, int64_t** lengths, dlDataType_t** dtypes, int* counts, int ntowers, int root) {
  return broadcast(tensors, lengths, dtypes, counts, ntowers, root);
}

int dl_comm_average(float* values, int64_t length) {
  return border([=] {
    if (length < 0) throw dl::CommError("the length is " + std::to_string(length));
    if (values == nullptr && length > 0) throw dl::CommError("the array is NULL");
    const dl::Buffer buffer{reinterpret_cast<char*>(values), static_cast<std::size_t>(length), dl::Dtype::float32};
    dl::the_session().allreduce({"average", {buffer}, {}}, dl::Op::mean, 0);
  });
}

int dl_comm_barrier(void) { return border([] { dl::the_session().barrier(); }); }

int dl_comm_arena(int64_t bytes, void** memory) {
  return border([=] {
    if (bytes < 0) throw dl::CommError("an arena cannot have " + std::to_string(bytes) + " bytes");
    *memory = dl::the_session().arena(static_cast<std::size_t>(bytes));
  });
}

int dl_comm_get_rank(void) { return number([](const dl::Session& s) { return s.rank(); }); }
int dl_comm_get_nranks(void) { return number([](const dl::Session& s) { return s.size(); }); }
int dl_comm_localrank(void) { return number([](const dl::Session& s) { return s.local_rank(); }); }
int dl_comm_get_localrank(void) { return dl_comm_localrank(); }
int dl_comm_get_localsize(void) { return number([](const dl::Session& s) { return s.local_size(); }); }

const char* dl_comm_last_error(void) { return last_error.c_str(); }

}  // extern "C"
