// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"errors"
	"fmt"
)

// The reasons for which something is refused: the label of a metric.
const (
	reasonNone      = "none"      // nothing was kept so far
	reasonOff       = "off"       // switched off
	reasonAge       = "age"       // too old
	reasonIdentity  = "identity"  // of another workload
	reasonVersion   = "version"   // of another version
	reasonKey       = "key"       // sealed with another key, or no key that is safe
	reasonDamaged   = "damaged"   // not what was written
	reasonDirectory = "directory" // not this user's alone
	reasonBusy      = "busy"      // another agent writes there
	reasonDisk      = "disk"      // cannot be read or written
	reasonSize      = "size"      // more than MaxBytes
	reasonBacklog   = "backlog"   // the disk was too slow
	reasonStep      = "step"      // it is not known what Envoy has
)

// refusal is why something is not used. Its text is a part of a sentence.
type refusal struct {
	reason string
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(reason, format string, args ...any) error {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

// about names the file of which a refusal speaks.
func about(path string, err error) error {
	return &refusal{reasonOf(err), fmt.Sprintf("%s is not used: %v", path, err)}
}

// reasonOf returns the label for an error.
func reasonOf(err error) string {
	var r *refusal
	if errors.As(err, &r) {
		return r.reason
	}
	return reasonDisk
}
