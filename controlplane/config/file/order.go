// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
)

const (
	// MaxStoreSize bounds the YAML of a [Store], in bytes. A file counts as
	// documentSize bytes for each of its documents at least.
	MaxStoreSize = 64 << 20
	documentSize = 512
	// readNow bounds what one refresh reads before it publishes, in bytes. Larger
	// files, and what is left of many small ones, are read beside it.
	readNow = 128 << 10
	// readAside bounds what is read beside at once.
	readAside = 1 << 20
	// fileCost is what a file costs at least for these two, in bytes: what one
	// held before may have to be written to a disk, see [lastGood].
	fileCost = 8 << 10
)

// errStoreFull is of a file that has no room in its store.
var errStoreFull = errors.New("the files of the config directory have more than " + fmt.Sprint(MaxStoreSize>>20) +
	" MiB, where a document counts as at least 512 bytes: remove files, or move some to another config source")

// charge returns what a file counts for, in bytes.
func charge(data []byte) int64 {
	return max(sizeCharge(int64(len(data))), documentSize*int64(1+bytes.Count(data, []byte("\n---"))))
}

// sizeCharge returns what a file of a size counts for at least.
func sizeCharge(size int64) int64 { return max(documentSize, size) }

// pathSize is a file that is to be read, and its size in bytes.
type pathSize struct {
	path string
	size int64
}

func (f pathSize) cost() int64 { return max(fileCost, f.size) }

// fairOrder returns files in the order in which they are read: directories share
// the bytes evenly, and each has its small files first. Many or large files in
// one directory so delay those of the others little.
func fairOrder(files map[string]fs.FileInfo) []pathSize {
	order := make([]pathSize, 0, len(files))
	for path, info := range files {
		order = append(order, pathSize{path, info.Size()})
	}
	slices.SortFunc(order, func(a, b pathSize) int { return cmp.Or(cmp.Compare(a.size, b.size), cmp.Compare(a.path, b.path)) })
	read, due := map[string]int64{}, make(map[string]int64, len(order))
	for _, f := range order {
		dir := filepath.Dir(f.path)
		read[dir] += f.cost()
		due[f.path] = read[dir]
	}
	slices.SortStableFunc(order, func(a, b pathSize) int { return cmp.Compare(due[a.path], due[b.path]) })
	return order
}

// fitting returns how many of the first files come to no more than a size.
func fitting(order []pathSize, most int64) (n int) {
	for n < len(order) && order[n].cost() <= most {
		most -= order[n].cost()
		n++
	}
	return n
}
