/* Where the unwinder of a panic finds its table. For a program that is linked as to an older C library (see baseline.rs); hidden, so that no other library sees it. */
#define _GNU_SOURCE
#include <link.h>
#include <stddef.h>
#include <stdint.h>

#define OWN __attribute__((visibility("hidden")))

/* By this call of glibc 2.35 the unwinder of a panic finds the object that contains an address. The layout is that of its <dlfcn.h>. */
struct found_object {
	unsigned long long flags;
	void *start, *end;
	struct link_map *map;
	void *unwind_table;
	unsigned long long reserved[7];
};

struct search {
	uintptr_t address;
	struct found_object *found;
};

static int look(struct dl_phdr_info *object, size_t size, void *data)
{
	struct search *search = data;
	const ElfW(Phdr) *inside = NULL, *table = NULL;
	(void)size;
	for (unsigned i = 0; i < object->dlpi_phnum; i++) {
		const ElfW(Phdr) *part = &object->dlpi_phdr[i];
		uintptr_t start = object->dlpi_addr + part->p_vaddr;
		if (part->p_type == PT_LOAD && search->address - start < part->p_memsz)
			inside = part;
		else if (part->p_type == PT_GNU_EH_FRAME)
			table = part;
	}
	if (!inside || !table)
		return 0;
	uintptr_t start = object->dlpi_addr + inside->p_vaddr;
	*search->found = (struct found_object){
		.start = (void *)start,
		.end = (void *)(start + inside->p_memsz),
		.unwind_table = (void *)(object->dlpi_addr + table->p_vaddr),
	};
	return 1;
}

/* Under a name of our own, as newer headers declare it. */
OWN int find_object(void *address, struct found_object *found) __asm__("_dl_find_object");

int find_object(void *address, struct found_object *found)
{
	struct search search = { (uintptr_t)address, found };
	return dl_iterate_phdr(look, &search) ? 0 : -1;
}
