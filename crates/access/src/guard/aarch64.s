// Names end with the version: two versions of this crate may be in one program.

// A row of the table is three distances from their own places: to the first guarded instruction, behind the last one, to
// where a fault of one goes on. A fault goes on as if the routine had been left there: none of them uses the stack.
.macro ferroce_row begin, end
.pushsection .rodata.ferroce_guarded, "a", %progbits
.long \begin - ., \end - ., ferroce_guarded_fault_{major}_{minor}_{patch} - .
.popsection
.endm

.macro ferroce_guarded instruction:vararg
771: \instruction
772:
ferroce_row 771b, 772b
.endm

.macro ferroce_routine name
.hidden \name
.globl \name
.type \name, %function
\name:
.cfi_startproc
.endm

.macro ferroce_return before
mov x0, \before
mov x1, #0
ret
.cfi_endproc
.endm

.pushsection .rodata.ferroce_guarded, "a", %progbits
.p2align 2
.hidden ferroce_guarded_rows_{major}_{minor}_{patch}
.globl ferroce_guarded_rows_{major}_{minor}_{patch}
ferroce_guarded_rows_{major}_{minor}_{patch}:
.popsection

.pushsection .text.ferroce_guarded, "ax", %progbits
.p2align 2

.arch_extension lse
ferroce_routine ferroce_guarded_add_lse_{major}_{minor}_{patch}
ferroce_guarded ldaddal x1, x2, [x0]
ferroce_return x2

ferroce_routine ferroce_guarded_swap_lse_{major}_{minor}_{patch}
ferroce_guarded casal x1, x2, [x0]
ferroce_return x1

ferroce_routine ferroce_guarded_store_lse_{major}_{minor}_{patch}
ferroce_guarded swpal x1, x2, [x0]
ferroce_return x2
.arch_extension nolse

ferroce_routine ferroce_guarded_add_exclusive_{major}_{minor}_{patch}
773:
ferroce_guarded ldaxr x2, [x0]
add x3, x2, x1
ferroce_guarded stlxr w4, x3, [x0]
cbnz w4, 773b
ferroce_return x2

ferroce_routine ferroce_guarded_swap_exclusive_{major}_{minor}_{patch}
773:
ferroce_guarded ldaxr x3, [x0]
cmp x3, x1
b.ne 774f
ferroce_guarded stlxr w4, x2, [x0]
cbnz w4, 773b
774:
ferroce_return x3

ferroce_routine ferroce_guarded_store_exclusive_{major}_{minor}_{patch}
773:
ferroce_guarded ldaxr x2, [x0]
ferroce_guarded stlxr w4, x1, [x0]
cbnz w4, 773b
ferroce_return x2

// The virtual counter. A thread may have forbidden itself to read it (prctl(2), PR_SET_TSC).
ferroce_routine ferroce_guarded_ticks_{major}_{minor}_{patch}
ferroce_guarded mrs x2, cntvct_el0
ferroce_return x2

// Copies x2 bytes from x1 to x0, upwards. Each aligned word of 8 bytes is stored at once. What ends the copy, a word or
// what there is in it, becomes visible after everything before.
.p2align 4
ferroce_routine ferroce_guarded_copy_{major}_{minor}_{patch}
771:
neg x3, x0
ands x3, x3, #7
b.eq 30f
// Into the middle of a word: first up to its end.
cmp x2, x3
b.ls 50f
sub x2, x2, x3
tbz x3, #0, 21f
ldrb w4, [x1], #1
strb w4, [x0], #1
21:
tbz x3, #1, 22f
ldrh w4, [x1], #2
strh w4, [x0], #2
22:
tbz x3, #2, 30f
ldr w4, [x1], #4
str w4, [x0], #4
// To an aligned word. The last word, or what there is in it, waits: x2 bytes come before it.
30:
ands x5, x2, #7
mov x6, #8
csel x5, x5, x6, ne
cbz x2, 55f
sub x2, x2, x5
subs x2, x2, #64
b.lo 32f
31:
ldp x6, x7, [x1]
ldp x8, x9, [x1, #16]
ldp x10, x11, [x1, #32]
ldp x12, x13, [x1, #48]
stp x6, x7, [x0]
stp x8, x9, [x0, #16]
stp x10, x11, [x0, #32]
stp x12, x13, [x0, #48]
add x1, x1, #64
add x0, x0, #64
subs x2, x2, #64
b.hs 31b
32:
tbz x2, #5, 33f
ldp x6, x7, [x1], #16
ldp x8, x9, [x1], #16
stp x6, x7, [x0], #16
stp x8, x9, [x0], #16
33:
tbz x2, #4, 34f
ldp x6, x7, [x1], #16
stp x6, x7, [x0], #16
34:
tbz x2, #3, 35f
ldr x6, [x1], #8
str x6, [x0], #8
35:
mov x2, x5
tbz x2, #3, 50f
dmb ishst
ldr x6, [x1]
str x6, [x0]
b 55f
// Within a word.
50:
tbz x2, #2, 51f
dmb ishst
ldr w4, [x1], #4
str w4, [x0], #4
51:
tbz x2, #1, 52f
dmb ishst
ldrh w4, [x1], #2
strh w4, [x0], #2
52:
tbz x2, #0, 55f
dmb ishst
ldrb w4, [x1]
strb w4, [x0]
55:
772:
ferroce_row 771b, 772b
ferroce_return xzr

ferroce_guarded_fault_{major}_{minor}_{patch}:
.cfi_startproc
mov x1, #1
ret
.cfi_endproc
.popsection

.pushsection .rodata.ferroce_guarded, "a", %progbits
.hidden ferroce_guarded_rows_end_{major}_{minor}_{patch}
.globl ferroce_guarded_rows_end_{major}_{minor}_{patch}
ferroce_guarded_rows_end_{major}_{minor}_{patch}:
.popsection

.purgem ferroce_row
.purgem ferroce_guarded
.purgem ferroce_routine
.purgem ferroce_return
