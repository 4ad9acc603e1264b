// Runs the text of a kernel, instruction by instruction: what dl_comm's own kernels (comm/src/device/kernels.cc) use of PTX.
// Whatever it does not know ends the process.
#include "fake.h"

#include <ctype.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { most_lines = 256, most_names = 128, name_length = 32, most_parameters = 16 };
typedef union { uint64_t u64; uint32_t u32; uint16_t u16; uint8_t u8; float f32; double f64; _Float16 f16; } Word;
typedef struct { char name[name_length]; size_t at, bytes; } Parameter;
typedef struct { enum { constant, reg, parameter } kind; int index; int64_t value; } Operand;  // value: of a constant, or an offset
// What it knows, up to the type of the last operand.
enum Code { RET, BRA, ST, LD, LD_PARAM, MOV, ADD, SUB, OR, AND, SHL, SHR, MUL_WIDE, MUL_LO, MAD_LO, SELP, EQ, NE, LT, GE, NANS, ADD_RN, DIV_RN,
            CVT_F32, CVT_RN_F16, CVT_RN_F32, CVT_U64, CVT_U32, CVT_U16, codes };
static const char* const known[codes] = {
    "ret", "bra", "st", "ld", "ld.param", "mov", "add", "sub", "or", "and", "shl", "shr", "mul.wide", "mul.lo", "mad.lo", "selp",
    "setp.eq", "setp.ne", "setp.lt", "setp.ge", "setp.nan", "add.rn", "div.rn", "cvt.f32", "cvt.rn.f16", "cvt.rn.f32", "cvt.u64", "cvt.u32",
    "cvt.u16"};

typedef struct { enum Code code; char type; int bits, when, unless, n, target; char label[name_length]; Operand operand[5]; } Line;
typedef struct Program {
  Parameter parameters[most_parameters];
  int n_parameters, n_lines, n_names;
  size_t bytes;  // of all parameters
  char names[most_names][name_length];
  Line lines[most_lines];
  struct { char name[name_length]; int line; } labels[16];
  int n_labels;
  struct Program* before;
} Program;
static _Atomic(Program*) programs;  // all there are: nothing is lost for a sanitizer

static const char* const special[] = {"%tid.x", "%ctaid.x", "%ntid.x", "%nctaid.x", "%ctaid.y"};
enum { specials = sizeof special / sizeof *special };

static _Noreturn void unknown(const char* text) { fprintf(stderr, "fake CUDA: PTX that it does not run: %s\n", text); abort(); }

static int number_of(Program* p, const char* name) {
  for (int i = 0; i < p->n_names; ++i) if (strcmp(p->names[i], name) == 0) return i;
  if (p->n_names == most_names) unknown(name);
  snprintf(p->names[p->n_names], name_length, "%.31s", name);
  return p->n_names++;
}

static Operand operand_of(Program* p, char* text) {
  Operand made = {constant, 0, 0};
  if (*text == '[') text++;
  char* const plus = strchr(text, '+');
  if (plus) made.value = atoll(plus + 1);
  text[strcspn(text, "+]")] = 0;
  if (isdigit((unsigned char)*text)) made.value = atoll(text);
  else if (*text == '%') made.kind = reg, made.index = number_of(p, text);
  else {
    for (int i = 0; i < p->n_parameters; ++i)
      if (strcmp(p->parameters[i].name, text) == 0) made.kind = parameter, made.index = i;
  }
  return made;
}

static void take_line(Program* p, char* text) {
  char *rest = text, *words[8];
  int n = 0;
  for (char* word; n < 8 && (word = strtok_r(rest, " \t\n,;", &rest)) != NULL;) words[n++] = word;
  if (n == 0 || words[0][0] == '.') return;  // .reg
  if (words[0][strlen(words[0]) - 1] == ':') {
    snprintf(p->labels[p->n_labels].name, name_length, "%.*s", (int)strlen(words[0]) - 1, words[0]);
    p->labels[p->n_labels++].line = p->n_lines;
    return;
  }
  if (p->n_lines == most_lines || p->n_labels == 16) unknown("too long");
  Line* const line = &p->lines[p->n_lines++];
  *line = (Line){.when = -1, .target = -1};
  int at = 0;
  if (words[0][0] == '@') {
    line->unless = words[0][1] == '!';
    line->when = number_of(p, words[at++] + 1 + line->unless);
  }
  const char* const dot = strrchr(words[at], '.');
  const size_t length = dot ? (size_t)(dot - words[at]) : strlen(words[at]);
  while (line->code < codes && (strlen(known[line->code]) != length || memcmp(known[line->code], words[at], length))) ++line->code;
  if (line->code == codes) unknown(words[at]);
  line->type = dot ? dot[1] : 0;
  line->bits = dot ? atoi(dot + 2) : 0;
  for (++at; at < n; ++at) {
    if (line->n == 5) unknown(text);
    if (line->code == BRA) snprintf(line->label, name_length, "%.31s", words[at]);
    else line->operand[line->n++] = operand_of(p, words[at]);
  }
}

// The kernel of this name in the text, or NULL.
Program* fake_program(const char* text, const char* name) {
  char entry[128];
  snprintf(entry, sizeof entry, ".visible .entry %s(", name);
  const char* from = strstr(text, entry);
  if (!from) return NULL;
  Program* const p = calloc(1, sizeof *p);
  p->before = atomic_exchange(&programs, p);
  for (int i = 0; i < specials; ++i) number_of(p, special[i]);
  const char* const body = strchr(from, '{');
  for (const char* at = from; (at = strstr(at, ".param")) != NULL && at < body; ++at) {
    Parameter* const one = &p->parameters[p->n_parameters++];
    int bits = 0, count = 1;
    if (sscanf(at, ".param .align 8 .b%d %31[a-z_][%d]", &bits, one->name, &count) < 3 &&
        sscanf(at, ".param .%*c%d %31[a-z_]", &bits, one->name) < 2) unknown(at);
    one->bytes = (size_t)bits / 8 * (size_t)count;
    one->at = (p->bytes + 7) / 8 * 8;
    p->bytes = one->at + one->bytes;
  }
  for (const char* at = body + 1; *at != '}';) {
    const size_t length = strcspn(at, "\n");
    char line[256];
    snprintf(line, sizeof line, "%.*s", (int)length, at);
    char* const comment = strstr(line, "//");
    if (comment) *comment = 0;
    take_line(p, line);
    at += length + 1;
  }
  for (int i = 0; i < p->n_lines; ++i) {
    Line* const line = &p->lines[i];
    for (int k = 0; k < p->n_labels; ++k)
      if (strcmp(p->labels[k].name, line->label) == 0) line->target = p->labels[k].line;
    if (line->code == BRA && line->target < 0) unknown(line->label);
  }
  return p;
}

size_t fake_parameters(const Program* p) { return p->bytes; }
void fake_take_parameters(const Program* p, char* to, void** from) {
  for (int i = 0; i < p->n_parameters; ++i) memcpy(to + p->parameters[i].at, from[i], p->parameters[i].bytes);
}

static Word value_of(const Line* line, int at, const Word* registers, const Program* p) {
  const Operand* const o = &line->operand[at];
  Word word = {0};
  if (o->kind == reg) return registers[o->index];
  word.u64 = o->kind == parameter ? p->parameters[o->index].at : (uint64_t)o->value;  // addresses of parameters count from 0
  return word;
}

static char* place(const Line* line, int at, const Word* registers, const Program* p, char* arguments) {
  const uint64_t address = value_of(line, at, registers, p).u64 + (line->operand[at].kind == constant ? 0 : (uint64_t)line->operand[at].value);
  if (line->code != LD_PARAM) return fake_on_host(address, (size_t)line->bits / 8, "a kernel");
  if (address + (uint64_t)line->bits / 8 > p->bytes) unknown("a parameter beyond the last");
  return arguments + address;
}

static void run_thread(const Program* p, char* arguments, Word* registers) {
  for (int at = 0; at < p->n_lines;) {
    const Line* const line = &p->lines[at++];
    if (line->when >= 0 && (registers[line->when].u8 != 0) == line->unless) continue;
    if (line->code == RET) return;
    if (line->code == BRA) {
      at = line->target;
      continue;
    }
    Word r = {0};
    if (line->code == ST) {
      const Word value = value_of(line, 1, registers, p);
      memcpy(place(line, 0, registers, p, arguments), &value, (size_t)line->bits / 8);
      continue;
    }
    const Word a = value_of(line, 1, registers, p), b = value_of(line, 2, registers, p), c = value_of(line, 3, registers, p);
    const int wide = line->bits == 64, narrow = line->bits == 32;
    switch (line->code) {
      case LD: case LD_PARAM: memcpy(&r, place(line, 1, registers, p, arguments), (size_t)line->bits / 8); break;
      case MOV: r = a; break;
      case ADD: r.u64 = a.u64 + b.u64; if (narrow) r.u64 = r.u32; break;
      case SUB: r.u64 = a.u64 - b.u64; if (narrow) r.u64 = r.u32; break;
      case OR: r.u64 = a.u64 | b.u64; break;
      case AND: r.u64 = a.u64 & b.u64; break;
      case SHL: r.u64 = a.u64 << b.u32; if (narrow) r.u64 = r.u32; break;
      case SHR: r.u64 = wide ? a.u64 >> b.u32 : a.u32 >> b.u32; break;
      case MUL_WIDE: r.u64 = (uint64_t)a.u32 * b.u32; break;
      case MUL_LO: r.u64 = a.u32 * b.u32; break;
      case MAD_LO: r.u64 = a.u32 * b.u32 + c.u32; break;
      case SELP: r = c.u8 ? a : b; break;
      case EQ: r.u8 = a.u32 == b.u32; break;
      case NE: r.u8 = a.u32 != b.u32; break;
      case LT: r.u8 = a.u32 < b.u32; break;
      case GE: r.u8 = a.u32 >= b.u32; break;
      case NANS: r.u8 = isnan(a.f32) || isnan(b.f32); break;
      case ADD_RN: if (wide) r.f64 = a.f64 + b.f64; else r.f32 = a.f32 + b.f32; break;
      case DIV_RN: if (wide) r.f64 = a.f64 / b.f64; else r.f32 = a.f32 / b.f32; break;
      case CVT_F32: r.f32 = (float)a.f16; break;
      case CVT_RN_F16: r.f16 = (_Float16)a.f32; break;
      case CVT_RN_F32: r.f32 = (float)a.f64; break;
      case CVT_U64: r.u64 = a.u32; break;
      default: r.u64 = a.u16;  // CVT_U32, CVT_U16
    }
    registers[line->operand[0].index] = r;
  }
}

// The kernels stride over their elements, so a few threads of the grid do: at most 2 blocks of 4 in x.
void fake_run(const Program* p, char* arguments, unsigned x, unsigned y, unsigned threads) {
  x = x < 2 ? x : 2;
  threads = threads < 4 ? threads : 4;
  Word* const registers = calloc(most_names, sizeof *registers);
  for (unsigned piece = 0; piece < y; ++piece)
    for (unsigned block = 0; block < x; ++block)
      for (unsigned thread = 0; thread < threads; ++thread) {
        const unsigned is[specials] = {thread, block, threads, x, piece};
        memset(registers, 0xff, most_names * sizeof *registers);
        for (int i = 0; i < specials; ++i) registers[i].u64 = is[i];
        run_thread(p, arguments, registers);
      }
  free(registers);
}
