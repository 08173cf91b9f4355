package filemap

import (
	"os"
	"slices"
	"sync"
	"unsafe"
)

// mappings are those that are open, so that Release can tell them from other memory.
var mappings struct {
	sync.Mutex
	open []*File
}

func register(f *File) {
	mappings.Lock()
	defer mappings.Unlock()
	mappings.open = append(mappings.open, f)
}

// unregister waits until no Release works on the mapping.
func unregister(f *File) {
	mappings.Lock()
	defer mappings.Unlock()
	mappings.open = slices.DeleteFunc(mappings.open, func(o *File) bool { return o == f })
}

// Release tells the system that the process will hardly read b, a part of an open
// mapping, again: whole pages of it leave the process's memory, and are read anew,
// mostly from the system's cache, when they are touched. It does nothing for other
// memory, and on systems where pages cannot be given back.
func Release(b []byte) {
	if len(b) == 0 {
		return
	}
	mappings.Lock()
	defer mappings.Unlock()
	start := uintptr(unsafe.Pointer(&b[0]))
	for _, f := range mappings.open {
		from := start - uintptr(unsafe.Pointer(unsafe.SliceData(f.data)))
		if from > uintptr(len(f.data)) || uintptr(len(b)) > uintptr(len(f.data))-from {
			continue
		}
		page := uintptr(os.Getpagesize())
		first, last := (from+page-1)/page*page, (from+uintptr(len(b)))/page*page
		if first < last {
			releasePages(f.data[first:last])
		}
		return
	}
}
