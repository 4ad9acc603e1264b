// The kernel of Copier in PTX, which the driver of any GPU since Maxwell compiles when it is loaded. It is
//
//   struct Table { unsigned long long at[120]; unsigned start[121]; };
//
//   template <class Word> __device__ void move(char* to, const char* from, unsigned n) {
//     for (unsigned i = blockIdx.x * blockDim.x + threadIdx.x; i < n / sizeof(Word); i += blockDim.x * gridDim.x)
//       ((Word*)to)[i] = ((const Word*)from)[i];
//   }
//
//   extern "C" __global__ void dl_copy_pieces(const __grid_constant__ Table table, char* dense, int into_pieces) {
//     const unsigned piece = blockIdx.y, begin = table.start[piece], n = table.start[piece + 1] - begin;
//     char* const array = (char*)table.at[piece];
//     char* const to = into_pieces ? array : dense + begin;
//     const char* const from = into_pieces ? dense + begin : array;
//     const unsigned long long all = (unsigned long long)to | (unsigned long long)from | n;
//     if (all % 4 == 0) move<unsigned>(to, from, n);
//     else if (all % 2 == 0) move<unsigned short>(to, from, n);
//     else move<unsigned char>(to, from, n);
//   }
//
// through `nvcc -ptx -O3`, with the version and the target lowered to the oldest that have what it uses.
namespace dl {

extern const char* const copier_kernel;
const char* const copier_kernel = R"(
.version 6.0
.target sm_50
.address_size 64
.visible .entry dl_copy_pieces(
	.param .align 8 .b8 table[1448],
	.param .u64 dense,
	.param .u32 into_pieces
)
{
	.reg .pred 	%p<13>;
	.reg .b16 	%rs<3>;
	.reg .b32 	%r<32>;
	.reg .b64 	%rd<32>;
	mov.b64 	%rd4, table;
	ld.param.u64 	%rd5, [dense];
	ld.param.u32 	%r17, [into_pieces];
	cvta.to.global.u64 	%rd6, %rd5;
	mov.u32 	%r18, %ctaid.y;
	mul.wide.u32 	%rd8, %r18, 4;
	add.s64 	%rd9, %rd4, %rd8;
	ld.param.u32 	%r19, [%rd9+964];
	ld.param.u32 	%r20, [%rd9+960];
	sub.s32 	%r1, %r19, %r20;
	mul.wide.u32 	%rd10, %r18, 8;
	add.s64 	%rd11, %rd4, %rd10;
	ld.param.u64 	%rd12, [%rd11];
	cvta.to.global.u64 	%rd13, %rd12;
	cvt.u64.u32 	%rd14, %r20;
	add.s64 	%rd15, %rd6, %rd14;
	add.s64 	%rd16, %rd5, %rd14;
	setp.eq.s32 	%p1, %r17, 0;
	selp.b64 	%rd1, %rd15, %rd13, %p1;
	selp.b64 	%rd17, %rd16, %rd12, %p1;
	selp.b64 	%rd2, %rd13, %rd15, %p1;
	selp.b64 	%rd18, %rd12, %rd16, %p1;
	cvt.u64.u32 	%rd19, %r1;
	or.b64  	%rd20, %rd18, %rd19;
	or.b64  	%rd3, %rd20, %rd17;
	and.b64  	%rd21, %rd3, 3;
	setp.eq.s64 	%p2, %rd21, 0;
	@%p2 bra 	$L__BB0_8;
	and.b64  	%rd22, %rd3, 1;
	setp.eq.b64 	%p3, %rd22, 1;
	mov.pred 	%p4, 0;
	xor.pred  	%p5, %p3, %p4;
	not.pred 	%p6, %p5;
	mov.u32 	%r2, %ntid.x;
	mov.u32 	%r21, %ctaid.x;
	mov.u32 	%r22, %tid.x;
	mad.lo.s32 	%r29, %r21, %r2, %r22;
	@%p6 bra 	$L__BB0_5;
	bra.uni 	$L__BB0_2;
$L__BB0_5:
	shr.u32 	%r7, %r1, 1;
	setp.ge.u32 	%p9, %r29, %r7;
	@%p9 bra 	$L__BB0_11;
	mov.u32 	%r24, %nctaid.x;
	mul.lo.s32 	%r8, %r2, %r24;
$L__BB0_7:
	.pragma "nounroll";
	mul.wide.u32 	%rd26, %r29, 2;
	add.s64 	%rd27, %rd2, %rd26;
	ld.global.u16 	%rs2, [%rd27];
	add.s64 	%rd28, %rd1, %rd26;
	st.global.u16 	[%rd28], %rs2;
	add.s32 	%r29, %r29, %r8;
	setp.lt.u32 	%p10, %r29, %r7;
	@%p10 bra 	$L__BB0_7;
	bra.uni 	$L__BB0_11;
$L__BB0_8:
	mov.u32 	%r25, %ctaid.x;
	mov.u32 	%r11, %ntid.x;
	mov.u32 	%r26, %tid.x;
	mad.lo.s32 	%r31, %r25, %r11, %r26;
	shr.u32 	%r13, %r1, 2;
	setp.ge.u32 	%p11, %r31, %r13;
	@%p11 bra 	$L__BB0_11;
	mov.u32 	%r27, %nctaid.x;
	mul.lo.s32 	%r14, %r11, %r27;
$L__BB0_10:
	.pragma "nounroll";
	mul.wide.u32 	%rd29, %r31, 4;
	add.s64 	%rd30, %rd2, %rd29;
	ld.global.u32 	%r28, [%rd30];
	add.s64 	%rd31, %rd1, %rd29;
	st.global.u32 	[%rd31], %r28;
	add.s32 	%r31, %r31, %r14;
	setp.lt.u32 	%p12, %r31, %r13;
	@%p12 bra 	$L__BB0_10;
	bra.uni 	$L__BB0_11;
$L__BB0_2:
	setp.ge.u32 	%p7, %r29, %r1;
	@%p7 bra 	$L__BB0_11;
	mov.u32 	%r23, %nctaid.x;
	mul.lo.s32 	%r4, %r2, %r23;
$L__BB0_4:
	.pragma "nounroll";
	cvt.u64.u32 	%rd23, %r29;
	add.s64 	%rd24, %rd2, %rd23;
	ld.global.u8 	%rs1, [%rd24];
	add.s64 	%rd25, %rd1, %rd23;
	st.global.u8 	[%rd25], %rs1;
	add.s32 	%r29, %r29, %r4;
	setp.lt.u32 	%p8, %r29, %r1;
	@%p8 bra 	$L__BB0_4;
$L__BB0_11:
	ret;
}
)";

}  // namespace dl
