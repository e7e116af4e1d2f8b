/* Sorted arrays of address ranges, looked up by bisection. */
#include "memory/ranges.h"
#include <stdlib.h>
#include <string.h>

Ranges taken, mapped;

size_t range_position(const Ranges *r, uintptr_t address) {
    size_t low = 0, high = r->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (r->items[middle].start + r->items[middle].bytes <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

Range *find_range(const Ranges *r, uintptr_t address) {
    size_t i = range_position(r, address);
    return i < r->count && r->items[i].start <= address ? &r->items[i] : NULL;
}

void add_range(Ranges *r, Range item) {
    size_t at = range_position(r, item.start);
    r->items = with_room(r->items, sizeof *r->items, r->count, &r->room);
    memmove(r->items + at + 1, r->items + at, sizeof *r->items * (r->count++ - at));
    r->items[at] = item;
}

void drop_range(Ranges *r, Range *item) {
    size_t at = (size_t)(item - r->items);
    memmove(item, item + 1, sizeof *item * (--r->count - at));
}
