// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lru

import (
	"fmt"
	"strings"
	"testing"
)

func (m *Map[K, V]) text() string {
	var out []string
	for k, v := range m.Oldest() {
		out = append(out, fmt.Sprintf("%v=%v", k, v))
	}
	return strings.Join(out, " ")
}

func TestMap(t *testing.T) {
	t.Parallel()
	m := New[string, int](3)
	for i, key := range []string{"a", "b", "c"} {
		m.Put(key, i)
	}
	if v, ok := m.Get("a"); v != 0 || !ok {
		t.Errorf("Get(a) = %d, %t; want 0, true", v, ok)
	}
	m.Put("b", 7)
	if got := m.text(); got != "c=2 a=0 b=7" {
		t.Errorf("order: got %s", got)
	}
	m.Put("d", 4)
	if _, ok := m.Get("c"); ok || m.Len() != 3 {
		t.Errorf("the oldest was not dropped: got %s", m.text())
	}
	for key := range m.Oldest() {
		if key != "b" {
			m.Delete(key)
		}
	}
	m.Delete("nothing")
	if got := m.text(); got != "b=7" || m.Len() != 1 || m.order.Len() != 1 {
		t.Errorf("entries: got %s, want b=7", got)
	}
}
