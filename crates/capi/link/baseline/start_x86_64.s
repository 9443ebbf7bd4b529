# The beginning of an executable. Older systems have a program run its own constructors, newer ones run them unless the program
# does; the installed file leaves it to them.
	.globl _start
	.type _start, %function
_start:
	.cfi_startproc
	.cfi_undefined rip
	xor %ebp, %ebp
	mov %rdx, %r9
	pop %rsi
	mov %rsp, %rdx
	and $-16, %rsp
	push %rax
	push %rsp
	xor %r8d, %r8d
	lea constructors(%rip), %rcx
	mov main@GOTPCREL(%rip), %rdi
	call *__libc_start_main@GOTPCREL(%rip)
	hlt
	.cfi_endproc
	.size _start, .-_start

# Calls each with the arguments of main.
	.type constructors, %function
constructors:
	.cfi_startproc
	push %rbx
	.cfi_adjust_cfa_offset 8
	push %r12
	.cfi_adjust_cfa_offset 8
	push %r13
	.cfi_adjust_cfa_offset 8
	push %r14
	.cfi_adjust_cfa_offset 8
	sub $8, %rsp
	.cfi_adjust_cfa_offset 8
	mov %edi, %r12d
	mov %rsi, %r13
	mov %rdx, %r14
	lea __init_array_start(%rip), %rbx
1:	lea __init_array_end(%rip), %rax
	cmp %rax, %rbx
	jae 2f
	mov %r12d, %edi
	mov %r13, %rsi
	mov %r14, %rdx
	call *(%rbx)
	add $8, %rbx
	jmp 1b
2:	add $8, %rsp
	.cfi_adjust_cfa_offset -8
	pop %r14
	.cfi_adjust_cfa_offset -8
	pop %r13
	.cfi_adjust_cfa_offset -8
	pop %r12
	.cfi_adjust_cfa_offset -8
	pop %rbx
	.cfi_adjust_cfa_offset -8
	ret
	.cfi_endproc
	.size constructors, .-constructors
	.hidden __init_array_start
	.hidden __init_array_end
	.section .note.GNU-stack,"",%progbits
