// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package objects

import "testing"

func TestReflow(t *testing.T) {
	t.Parallel()
	const text = `Print the state of the proxies, and
since when.

  SYNCED     the proxy accepted the last response
  HELD BACK  another proxy rejected it
What follows a list is a paragraph.
`
	const want = `Print the state of the
proxies, and since when.

  SYNCED     the proxy
             accepted the
             last response
  HELD BACK  another proxy
             rejected it
What follows a list is a
paragraph.
`
	if got := reflow(text, 27); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}
