// How data gets from a GPU to a thread of the host and back, in chunks, with nobody waiting but who must.
//
//   out     [copy out 0][copy out 1][copy out 2][copy out 3] ...             a stream of the GPU
//   host                [combine 0  ][combine 1  ][combine 2  ] ...          a thread of the team
//   back                            [copy back 0][copy back 1] ...           another stream
//
// The framework's thread enqueues all of this at once and goes on. `out` posts a number when a chunk is there; the host's
// thread waits for it, combines the chunk with those of the other ranks, and posts the same number for `back`, which has
// been waiting on the device. DL_COMM_NUM_CUDA_STREAMS pairs of streams take the chunks round-robin.
//
// It cannot deadlock, even where the GPU runs all streams one after the other: what `back` waits for needs
// only copies that every rank has enqueued before.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "device/copier.h"
#include "device/cuda.h"
#include "device/signals.h"
#include "flat.h"
#include "settings.h"

namespace dl {

class Pipeline {
 public:
  // Bytes of pinned memory for one pipeline, and of one chunk.
  static std::size_t footprint(const Settings& settings);
  static std::size_t chunk_bytes(const Settings& settings) { return settings.gpu_chunk_kb * 1024; }

  // Its memory begins `offset` bytes into what begins at `pinned`. The GPU's context is current, here and in the calls of
  // the framework's side.
  Pipeline(const Gpu& gpu, const Settings& settings, char* pinned, std::size_t offset);

  // The framework's side; one thread at a time. Chunks are numbered from 1 on, modulo 2^32.
  std::uint32_t next() const { return sent_ + 1; }
  void begin_after(Cuda::Event event);                              // what is sent from now on waits for it
  void send(const Flat& flat, std::size_t first, std::size_t n);    // these elements, out and back
  void finish_before(Cuda::Stream stream);                          // `stream` waits until all that was sent is back

  // The side of the host's thread: returns chunk `number` once it is there / lets it go back.
  char* await(std::uint32_t number);
  void give_back(std::uint32_t number);

  // After an error nobody will combine what is left of chunks first to last: they go back as they came.
  void give_up(std::uint32_t first, std::uint32_t last);

  // The framework's side has failed, and chunks that were announced will not come: await throws CommError(why).
  void abandon(const std::string& why);

  bool in_stream() const { return signals_.in_stream(); }

 private:
  struct StreamPair {
    Cuda::Stream out, back;
    Cuda::Event done;
    bool used;
  };
  std::size_t slot_of(std::uint32_t number) const { return number % slots_; }
  char* at(std::uint32_t number) const { return memory_ + slot_of(number) * chunk_; }

  const Cuda& cuda_;
  std::size_t chunk_, slots_;
  char* memory_;
  Signals signals_;  // of slot s: 2 s is there, 2 s + 1 may go back
  Copier copier_;
  std::vector<StreamPair> pairs_;
  std::vector<Cuda::Event> free_;    // of each slot: its last chunk is back
  std::vector<Cuda::Event> copied_;  // and: it is there; only where the host posts for the streams
  std::uint32_t sent_ = 0;
  std::string why_;  // before abandoned_
  std::atomic<bool> abandoned_{false};
};

}  // namespace dl
