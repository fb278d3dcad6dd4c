// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package field

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

const (
	// MaxListed bounds the errors, and the warnings, that are listed for one
	// object, and the problems of a file that belong to no object.
	MaxListed = 20
	// MaxKeyText bounds a map key in the path of a field, in bytes.
	MaxKeyText = 100
)

// Error is what is wrong with one field.
type Error struct {
	// Path is the field, for example "spec.http[0].route"; empty for the
	// object as a whole.
	Path string
	// Text continues the sentence: the value and the cure.
	Text string
}

func (e Error) Error() string {
	if e.Path == "" {
		return e.Text
	}
	return e.Path + " " + e.Text
}

// Unlisted is the last entry of a list that was cut; what is "error",
// "warning" or "problem".
func Unlisted(n int, what string) string {
	if n == 1 {
		return "1 more " + what + " is not listed: correct the others first"
	}
	return fmt.Sprintf("%d more %ss are not listed: correct the others first", n, what)
}

// Key returns the path of an entry of a map. It shortens long keys, because
// the paths of everything below the entry begin with it.
func Key(path, key string) string {
	return path + "[" + Clip(key, MaxKeyText) + "]"
}

// Clip returns s, or its first bytes and an ellipsis if it is longer than most.
func Clip(s string, most int) string {
	if len(s) <= most {
		return s
	}
	return clip.Start(s, most) + "…"
}

func Index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// Quote returns a value as messages show it: in quotes, and not too long.
func Quote(s string) string {
	const most = 80
	runes := 0
	for i := range s {
		if runes++; runes > most {
			s = s[:i] + "…"
			break
		}
	}
	return strconv.Quote(s)
}

// Sorted visits a map in the order of its keys, so that problems come in the
// same order each time.
func Sorted[V any](m map[string]V) func(func(string, V) bool) {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}
