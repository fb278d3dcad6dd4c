// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package lastgood

import (
	"errors"
	"fmt"
)

// Reasons for a refusal, used as label values of a metric.
const (
	reasonNone      = "none"      // nothing has been stored yet
	reasonOff       = "off"       // disabled
	reasonAge       = "age"       // too old
	reasonIdentity  = "identity"  // belongs to another workload
	reasonVersion   = "version"   // from another version
	reasonKey       = "key"       // sealed with another key, or no safe key
	reasonDamaged   = "damaged"   // content differs from what was written
	reasonDirectory = "directory" // accessible to other users
	reasonBusy      = "busy"      // in use by another agent
	reasonDisk      = "disk"      // I/O error
	reasonSize      = "size"      // larger than MaxBytes
	reasonBacklog   = "backlog"   // the disk was too slow
	reasonStep      = "step"      // Envoy's state is unknown
)

// refusal is the reason why something is not used. Its text is part of a sentence.
type refusal struct {
	reason string
	text   string
}

func (r *refusal) Error() string { return r.text }

func refuse(reason, format string, args ...any) error {
	return &refusal{reason, fmt.Sprintf(format, args...)}
}

// about adds the path of the file to a refusal.
func about(path string, err error) error {
	return &refusal{reasonOf(err), fmt.Sprintf("%s is not used: %v", path, err)}
}

// reasonOf returns the label value for an error.
func reasonOf(err error) string {
	var r *refusal
	if errors.As(err, &r) {
		return r.reason
	}
	return reasonDisk
}
