// What runs on the GPU, in PTX, which the driver of any GPU since Maxwell compiles when it is loaded. Written by hand.
// Copier and IpcTeam launch them; the fake driver of the tests runs this very text.
#include "device/kernels.h"

// A thread takes every (threads of the grid)-th element: %i is the first of n, and the next are %step apart.
#define EVERY_STEP \
  "mov.u32 %i, %ctaid.x;\n" \
  "mov.u32 %step, %ntid.x;\n" \
  "mov.u32 %w, %tid.x;\n" \
  "mad.lo.u32 %i, %i, %step, %w;\n" \
  "mov.u32 %w, %nctaid.x;\n" \
  "mul.lo.u32 %step, %step, %w;\n" \
  "next:\n" \
  "setp.ge.u32 %done, %i, %n;\n" \
  "@%done ret;\n"

namespace dl {

const char* const kernels = R"(
.version 6.0
.target sm_50
.address_size 64

// Elements of the arrays <-> a dense stretch. Piece p (%ctaid.y) lies at table.at[p], and in the stretch from element
// table.start[p] to table.start[p + 1]. `back`: from the stretch to the arrays. `kind` (Move::Kind): 0 bytes, 1 two
// bytes, 2 four, all as they are; numbers that are divided on the way back: 3 float16 and 4 bfloat16, which are float32
// in the stretch, 5 float32, 6 float64. An element of an array has 2^array_shift bytes, one of the stretch 2^dense_shift.
.visible .entry dl_move_pieces(
	.param .align 8 .b8 table[1448],
	.param .u64 dense,
	.param .u32 back,
	.param .u32 kind,
	.param .u32 array_shift,
	.param .u32 dense_shift,
	.param .f64 divisor
)
{
	.reg .pred %done, %back, %raw, %u8, %u16, %u32, %f16, %bf16, %f32, %f64, %nan;
	.reg .b16 %h;
	.reg .b32 %piece, %n, %i, %step, %array_shift, %dense_shift, %w, %v;
	.reg .b64 %t, %array, %dense, %a, %d, %from, %to;
	.reg .f32 %f, %divisor;
	.reg .f64 %g, %wide_divisor;

	mov.u32 %piece, %ctaid.y;
	mov.u64 %t, table;
	mul.wide.u32 %a, %piece, 8;
	add.u64 %a, %a, %t;
	ld.param.u64 %array, [%a];
	mul.wide.u32 %a, %piece, 4;
	add.u64 %a, %a, %t;
	ld.param.u32 %w, [%a+960];
	ld.param.u32 %n, [%a+964];
	sub.u32 %n, %n, %w;
	ld.param.u32 %array_shift, [array_shift];
	ld.param.u32 %dense_shift, [dense_shift];
	ld.param.u64 %dense, [dense];
	cvt.u64.u32 %d, %w;
	shl.b64 %d, %d, %dense_shift;
	add.u64 %dense, %dense, %d;

	ld.param.u32 %w, [back];
	setp.ne.u32 %back, %w, 0;
	ld.param.u32 %w, [kind];
	setp.lt.u32 %raw, %w, 3;
	setp.eq.u32 %u8, %w, 0;
	setp.eq.u32 %u16, %w, 1;
	setp.eq.u32 %u32, %w, 2;
	setp.eq.u32 %f16, %w, 3;
	setp.eq.u32 %bf16, %w, 4;
	setp.eq.u32 %f32, %w, 5;
	setp.eq.u32 %f64, %w, 6;
	ld.param.f64 %wide_divisor, [divisor];
	cvt.rn.f32.f64 %divisor, %wide_divisor;

)" EVERY_STEP R"(	cvt.u64.u32 %a, %i;
	shl.b64 %d, %a, %dense_shift;
	add.u64 %d, %d, %dense;
	shl.b64 %a, %a, %array_shift;
	add.u64 %a, %a, %array;
	add.u32 %i, %i, %step;
	@%raw bra as_they_are;
	@%back bra narrow;

	@%f16 ld.b16 %h, [%a];
	@%f16 cvt.f32.f16 %f, %h;
	@%bf16 ld.u16 %h, [%a];
	@%bf16 cvt.u32.u16 %w, %h;
	@%bf16 shl.b32 %w, %w, 16;
	@%bf16 mov.b32 %f, %w;
	@%f32 ld.f32 %f, [%a];
	@!%f64 st.f32 [%d], %f;
	@%f64 ld.f64 %g, [%a];
	@%f64 st.f64 [%d], %g;
	bra next;

narrow:
	@!%f64 ld.f32 %f, [%d];
	@!%f64 div.rn.f32 %f, %f, %divisor;
	@%f16 cvt.rn.f16.f32 %h, %f;
	@%f16 st.b16 [%a], %h;
	// bfloat16: to the nearest, ties to even; a NaN keeps its upper half, and is quiet
	@%bf16 mov.b32 %w, %f;
	@%bf16 shr.u32 %v, %w, 16;
	@%bf16 and.b32 %piece, %v, 1;
	@%bf16 add.u32 %w, %w, 32767;
	@%bf16 add.u32 %w, %w, %piece;
	@%bf16 shr.u32 %w, %w, 16;
	@%bf16 or.b32 %v, %v, 64;
	setp.nan.f32 %nan, %f, %f;
	@%nan mov.u32 %w, %v;
	@%bf16 cvt.u16.u32 %h, %w;
	@%bf16 st.u16 [%a], %h;
	@%f32 st.f32 [%a], %f;
	@%f64 ld.f64 %g, [%d];
	@%f64 div.rn.f64 %g, %g, %wide_divisor;
	@%f64 st.f64 [%a], %g;
	bra next;

as_they_are:
	selp.b64 %from, %d, %a, %back;
	selp.b64 %to, %a, %d, %back;
	@%u8 ld.u8 %h, [%from];
	@%u8 st.u8 [%to], %h;
	@%u16 ld.u16 %h, [%from];
	@%u16 st.u16 [%to], %h;
	@%u32 ld.u32 %w, [%from];
	@%u32 st.u32 [%to], %w;
	bra next;
}

// to[i] = at[0][i] + at[1][i] + ... of `ranks` arrays, in this order; float32, or float64 where `wide`.
.visible .entry dl_sum_ranks(
	.param .align 8 .b8 at[512],
	.param .u64 to,
	.param .u32 ranks,
	.param .u32 n,
	.param .u32 wide
)
{
	.reg .pred %done, %wide;
	.reg .b32 %i, %n, %step, %shift, %rank, %ranks, %w;
	.reg .b64 %at, %to, %a, %offset;
	.reg .f32 %f, %more;
	.reg .f64 %g, %wide_more;

	ld.param.u64 %to, [to];
	ld.param.u32 %ranks, [ranks];
	ld.param.u32 %n, [n];
	ld.param.u32 %w, [wide];
	setp.ne.u32 %wide, %w, 0;
	selp.b32 %shift, 3, 2, %wide;
)" EVERY_STEP R"(	cvt.u64.u32 %offset, %i;
	shl.b64 %offset, %offset, %shift;
	add.u32 %i, %i, %step;
	mov.u64 %at, at;
	ld.param.u64 %a, [%at];
	add.u64 %a, %a, %offset;
	@!%wide ld.f32 %f, [%a];
	@%wide ld.f64 %g, [%a];
	mov.u32 %rank, 1;
more:
	setp.ge.u32 %done, %rank, %ranks;
	@%done bra summed;
	add.u32 %rank, %rank, 1;
	add.u64 %at, %at, 8;
	ld.param.u64 %a, [%at];
	add.u64 %a, %a, %offset;
	@!%wide ld.f32 %more, [%a];
	@!%wide add.rn.f32 %f, %f, %more;
	@%wide ld.f64 %wide_more, [%a];
	@%wide add.rn.f64 %g, %g, %wide_more;
	bra more;
summed:
	add.u64 %a, %to, %offset;
	@!%wide st.f32 [%a], %f;
	@%wide st.f64 [%a], %g;
	bra next;
}
)";

}  // namespace dl
