// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// onlyMarkers reports whether a file holds nothing that a person would miss.
func onlyMarkers(data []byte) bool {
	for line := range bytes.Lines(data) {
		if line = bytes.TrimSpace(line); len(line) > 0 && string(line) != "---" {
			return false
		}
	}
	return true
}

// checkEdit returns why a change of a file is not just that of one object; there tells whether
// the object is meant to be in it.
func checkEdit(before, after content, key model.Key, there bool) error {
	faults := func(c content) (n int) {
		for _, p := range c.problems {
			if !p.Warning && p.Object != key {
				n++
			}
		}
		return n
	}
	if faults(before) != faults(after) {
		return fmt.Errorf("it would have %d problems instead of %d", faults(after), faults(before))
	}
	now := map[model.Key]string{}
	for _, c := range after.objects {
		now[c.Key] = c.ResourceVersion
	}
	others := 0
	for _, c := range before.objects {
		if c.Key == key {
			continue
		}
		others++
		if now[c.Key] != c.ResourceVersion {
			return fmt.Errorf("%s would change", c.Key)
		}
	}
	_, found := now[key]
	delete(now, key)
	if len(now) != others {
		return errors.New("other objects would appear")
	}
	if found != there {
		return fmt.Errorf("the file contains it: %v, but want %v", found, there)
	}
	return nil
}
