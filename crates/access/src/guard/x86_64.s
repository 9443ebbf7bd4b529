// Names end with the version: two versions of this crate may be in one program.

// A row of the table is three distances from their own places: to the first guarded instruction, behind the last one, to
// where a fault of one goes on. A fault goes on as if the routine had been left there: none of them uses the stack.
.macro ferroce_row begin, end, landing
.pushsection .rodata.ferroce_guarded, "a", @progbits
.long \begin - ., \end - ., \landing - .
.popsection
.endm

.macro ferroce_guarded instruction:vararg
771: \instruction
772:
ferroce_row 771b, 772b, ferroce_guarded_fault_{major}_{minor}_{patch}
.endm

.macro ferroce_routine name
.hidden \name
.globl \name
.type \name, @function
\name:
.cfi_startproc
.endm

.macro ferroce_end name
.cfi_endproc
.size \name, . - \name
.endm

// Moves what fits into a register of this name, and goes on behind it.
.macro ferroce_move register, size
mov \register, [rsi]
mov [rdi], \register
add rsi, \size
add rdi, \size
.endm

// Moves ecx bytes, 0 to 7, up to the next aligned word.
.macro ferroce_move_to_word
test cl, 1
jz 81f
ferroce_move al, 1
81:
test cl, 2
jz 82f
ferroce_move ax, 2
82:
test cl, 4
jz 83f
ferroce_move eax, 4
83:
.endm

.pushsection .rodata.ferroce_guarded, "a", @progbits
.p2align 2
.hidden ferroce_guarded_rows_{major}_{minor}_{patch}
.globl ferroce_guarded_rows_{major}_{minor}_{patch}
ferroce_guarded_rows_{major}_{minor}_{patch}:
.popsection

.pushsection .text.ferroce_guarded, "ax", @progbits

ferroce_routine ferroce_guarded_add_{major}_{minor}_{patch}
mov rax, rsi
ferroce_guarded lock xadd qword ptr [rdi], rax
xor edx, edx
ret
ferroce_end ferroce_guarded_add_{major}_{minor}_{patch}

ferroce_routine ferroce_guarded_swap_{major}_{minor}_{patch}
mov rax, rsi
ferroce_guarded lock cmpxchg qword ptr [rdi], rdx
xor edx, edx
ret
ferroce_end ferroce_guarded_swap_{major}_{minor}_{patch}

ferroce_routine ferroce_guarded_store_{major}_{minor}_{patch}
mov rax, rsi
ferroce_guarded xchg qword ptr [rdi], rax
xor edx, edx
ret
ferroce_end ferroce_guarded_store_{major}_{minor}_{patch}

// The time-stamp counter. A thread may have forbidden itself to read it (prctl(2), PR_SET_TSC).
ferroce_routine ferroce_guarded_ticks_{major}_{minor}_{patch}
ferroce_guarded rdtsc
shl rdx, 32
or rax, rdx
xor edx, edx
ret
ferroce_end ferroce_guarded_ticks_{major}_{minor}_{patch}

// Copies rdx bytes from rsi to rdi, upwards. Each aligned word of 8 bytes is stored at once, and no store crosses the
// border of such a word but those of 16 and 32 bytes, which are aligned themselves: stores become visible in the order
// of their addresses, the last byte last.
.p2align 5
ferroce_routine ferroce_guarded_copy_{major}_{minor}_{patch}
771:
test edi, 7
jnz 50f
12:
cmp rdx, 128
jae 40f
// To an aligned word, less than 128 bytes.
20:
cmp rdx, 32
jb 22f
21:
mov rax, [rsi]
mov rcx, [rsi + 8]
mov r8, [rsi + 16]
mov r9, [rsi + 24]
mov [rdi], rax
mov [rdi + 8], rcx
mov [rdi + 16], r8
mov [rdi + 24], r9
add rsi, 32
add rdi, 32
sub rdx, 32
cmp rdx, 32
jae 21b
22:
test dl, 16
jz 23f
mov rax, [rsi]
mov rcx, [rsi + 8]
mov [rdi], rax
mov [rdi + 8], rcx
add rsi, 16
add rdi, 16
23:
test dl, 8
jz 24f
ferroce_move rax, 8
24:
test dl, 7
jnz 30f
25:
xor edx, edx
ret
// Within a word.
30:
test dl, 4
jz 31f
ferroce_move eax, 4
31:
test dl, 2
jz 32f
ferroce_move ax, 2
32:
test dl, 1
jz 25b
mov al, [rsi]
mov [rdi], al
jmp 25b
// To an aligned word, 128 bytes and more.
40:
test dil, 8
jz 41f
ferroce_move rax, 8
sub rdx, 8
41:
movups xmm0, [rsi]
movups xmm1, [rsi + 16]
movups xmm2, [rsi + 32]
movups xmm3, [rsi + 48]
movaps [rdi], xmm0
movaps [rdi + 16], xmm1
movaps [rdi + 32], xmm2
movaps [rdi + 48], xmm3
add rsi, 64
add rdi, 64
sub rdx, 64
cmp rdx, 64
jae 41b
jmp 20b
// Into the middle of a word: first up to its end.
50:
mov ecx, edi
neg ecx
and ecx, 7
cmp rdx, rcx
jbe 30b
sub rdx, rcx
ferroce_move_to_word
jmp 12b
772:
ferroce_row 771b, 772b, ferroce_guarded_fault_{major}_{minor}_{patch}
ferroce_end ferroce_guarded_copy_{major}_{minor}_{patch}

// The same from 256 bytes on, for processors with AVX.
.p2align 5
ferroce_routine ferroce_guarded_copy_avx_{major}_{minor}_{patch}
771:
test edi, 7
jz 3f
mov ecx, edi
neg ecx
and ecx, 7
sub rdx, rcx
ferroce_move_to_word
3:
test dil, 8
jz 4f
ferroce_move rax, 8
sub rdx, 8
4:
test dil, 16
jz 5f
movups xmm0, [rsi]
movaps [rdi], xmm0
add rsi, 16
add rdi, 16
sub rdx, 16
5:
vmovups ymm0, [rsi]
vmovups ymm1, [rsi + 32]
vmovups ymm2, [rsi + 64]
vmovups ymm3, [rsi + 96]
vmovaps [rdi], ymm0
vmovaps [rdi + 32], ymm1
vmovaps [rdi + 64], ymm2
vmovaps [rdi + 96], ymm3
sub rsi, -128
sub rdi, -128
add rdx, -128
cmp rdx, 128
jae 5b
772:
ferroce_row 771b, 772b, ferroce_guarded_fault_avx_{major}_{minor}_{patch}
vzeroupper
jmp ferroce_guarded_copy_{major}_{minor}_{patch}
ferroce_end ferroce_guarded_copy_avx_{major}_{minor}_{patch}

// Folds a register into itself, moved up by the factors in xmm8 or ymm8, and adds another one.
.macro ferroce_fold16 into, more
movdqa xmm9, \into
pclmulqdq xmm9, xmm8, 0x00
pclmulqdq \into, xmm8, 0x11
pxor \into, xmm9
pxor \into, \more
.endm

.macro ferroce_fold32 into, more
vpclmulqdq ymm9, \into, ymm8, 0x00
vpclmulqdq \into, \into, ymm8, 0x11
vpxor \into, \into, ymm9
vpxor \into, \into, \more
.endm

// Copies rdx bytes, a multiple of 32 and 128 at least, from rsi to rdi, upwards, by stores of 16 bytes. At rcx are 16 bytes, which are
// added to the first 16, and then those with the same CRC as all of them. At r8 are the factors for 1024, 512, 256 and 128 bits.
.p2align 5
ferroce_routine ferroce_guarded_fold_{major}_{minor}_{patch}
771:
movdqu xmm0, [rsi]
movdqu xmm1, [rsi + 16]
movdqu xmm2, [rsi + 32]
movdqu xmm3, [rsi + 48]
movdqu [rdi], xmm0
movdqu [rdi + 16], xmm1
movdqu [rdi + 32], xmm2
movdqu [rdi + 48], xmm3
movdqu xmm9, [rcx]
pxor xmm0, xmm9
movdqu xmm8, [r8 + 16]
add rsi, 64
add rdi, 64
sub rdx, 64
61:
movdqu xmm4, [rsi]
movdqu xmm5, [rsi + 16]
movdqu xmm6, [rsi + 32]
movdqu xmm7, [rsi + 48]
movdqu [rdi], xmm4
movdqu [rdi + 16], xmm5
movdqu [rdi + 32], xmm6
movdqu [rdi + 48], xmm7
ferroce_fold16 xmm0, xmm4
ferroce_fold16 xmm1, xmm5
ferroce_fold16 xmm2, xmm6
ferroce_fold16 xmm3, xmm7
add rsi, 64
add rdi, 64
sub rdx, 64
cmp rdx, 64
jae 61b
movdqu xmm8, [r8 + 48]
ferroce_fold16 xmm0, xmm1
ferroce_fold16 xmm0, xmm2
ferroce_fold16 xmm0, xmm3
test rdx, rdx
jz 62f
movdqu xmm4, [rsi]
movdqu xmm5, [rsi + 16]
movdqu [rdi], xmm4
movdqu [rdi + 16], xmm5
ferroce_fold16 xmm0, xmm4
ferroce_fold16 xmm0, xmm5
62:
movdqu [rcx], xmm0
772:
ferroce_row 771b, 772b, ferroce_guarded_fault_{major}_{minor}_{patch}
xor edx, edx
ret
ferroce_end ferroce_guarded_fold_{major}_{minor}_{patch}

// The same by stores of 32 bytes, for processors with AVX2 and VPCLMULQDQ.
.p2align 5
ferroce_routine ferroce_guarded_fold_avx_{major}_{minor}_{patch}
771:
vmovdqu ymm0, [rsi]
vmovdqu ymm1, [rsi + 32]
vmovdqu ymm2, [rsi + 64]
vmovdqu ymm3, [rsi + 96]
vmovdqu [rdi], ymm0
vmovdqu [rdi + 32], ymm1
vmovdqu [rdi + 64], ymm2
vmovdqu [rdi + 96], ymm3
// The upper half becomes zero.
vmovdqu xmm9, [rcx]
vpxor ymm0, ymm0, ymm9
vbroadcasti128 ymm8, [r8]
sub rsi, -128
sub rdi, -128
add rdx, -128
cmp rdx, 128
jb 64f
63:
vmovdqu ymm4, [rsi]
vmovdqu ymm5, [rsi + 32]
vmovdqu ymm6, [rsi + 64]
vmovdqu ymm7, [rsi + 96]
vmovdqu [rdi], ymm4
vmovdqu [rdi + 32], ymm5
vmovdqu [rdi + 64], ymm6
vmovdqu [rdi + 96], ymm7
ferroce_fold32 ymm0, ymm4
ferroce_fold32 ymm1, ymm5
ferroce_fold32 ymm2, ymm6
ferroce_fold32 ymm3, ymm7
sub rsi, -128
sub rdi, -128
add rdx, -128
cmp rdx, 128
jae 63b
64:
vbroadcasti128 ymm8, [r8 + 32]
ferroce_fold32 ymm0, ymm1
ferroce_fold32 ymm0, ymm2
ferroce_fold32 ymm0, ymm3
test rdx, rdx
jz 66f
65:
vmovdqu ymm4, [rsi]
vmovdqu [rdi], ymm4
ferroce_fold32 ymm0, ymm4
add rsi, 32
add rdi, 32
sub rdx, 32
jnz 65b
66:
vmovdqu xmm8, [r8 + 48]
vextracti128 xmm1, ymm0, 1
vpclmulqdq xmm9, xmm0, xmm8, 0x00
vpclmulqdq xmm0, xmm0, xmm8, 0x11
vpxor xmm0, xmm0, xmm9
vpxor xmm0, xmm0, xmm1
vmovdqu [rcx], xmm0
772:
ferroce_row 771b, 772b, ferroce_guarded_fault_avx_{major}_{minor}_{patch}
vzeroupper
xor edx, edx
ret
ferroce_end ferroce_guarded_fold_avx_{major}_{minor}_{patch}

ferroce_guarded_fault_avx_{major}_{minor}_{patch}:
.cfi_startproc
vzeroupper
mov edx, 1
ret
.cfi_endproc

ferroce_guarded_fault_{major}_{minor}_{patch}:
.cfi_startproc
mov edx, 1
ret
.cfi_endproc

// These bytes are those by which unwinders and debuggers know a signal's frame (mov rax, SYS_rt_sigreturn; syscall). They
// have no description of their own, and neither has the byte before them.
nop
.hidden ferroce_guarded_restore_{major}_{minor}_{patch}
.globl ferroce_guarded_restore_{major}_{minor}_{patch}
.type ferroce_guarded_restore_{major}_{minor}_{patch}, @function
ferroce_guarded_restore_{major}_{minor}_{patch}:
.byte 0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05
.size ferroce_guarded_restore_{major}_{minor}_{patch}, . - ferroce_guarded_restore_{major}_{minor}_{patch}
.popsection

.pushsection .rodata.ferroce_guarded, "a", @progbits
.hidden ferroce_guarded_rows_end_{major}_{minor}_{patch}
.globl ferroce_guarded_rows_end_{major}_{minor}_{patch}
ferroce_guarded_rows_end_{major}_{minor}_{patch}:
.popsection

.purgem ferroce_row
.purgem ferroce_guarded
.purgem ferroce_routine
.purgem ferroce_end
.purgem ferroce_move
.purgem ferroce_move_to_word
