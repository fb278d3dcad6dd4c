// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package inspect

import "testing"

func TestPublished(t *testing.T) {
	t.Parallel()
	for _, c := range [][3]string{
		{"10.1.0.3", "127.1.0.1:15014", "127.1.0.3"},
		{"172.17.2.3", "127.1.0.1:15014", "127.1.2.3"},
		{"fd00::3", "127.1.0.1:15014", "fd00::3"},
		{"10.1.0.3", "localhost:15014", "10.1.0.3"},
	} {
		if got := published(c[0], c[1]); got != c[2] {
			t.Errorf("published(%s, %s) = %s, want %s", c[0], c[1], got, c[2])
		}
	}
}
