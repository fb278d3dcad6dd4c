// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package report

import (
	"encoding/json"
	"time"
)

// History is the versions of objects, and of the mesh config, that a control plane has used.
type History struct {
	Replica string `json:"replica"`
	// Stores are the URLs of the config stores in the order of their precedence, without passwords.
	Stores []string `json:"stores,omitempty"`
	// Begins is when the history begins: earlier versions are not known.
	Begins time.Time `json:"begins"`
	// Versions are in the order of time, the newest last. Omitted is the number of older ones that
	// the answer omits.
	Versions []Version `json:"versions"`
	Omitted  int       `json:"omitted,omitempty"`
	// Damaged is the number of lines of the files that cannot be read: versions may be missing.
	Damaged int `json:"damaged,omitempty"`
	// Stopped is since when, and Reason why, no versions are recorded; zero if they are.
	Stopped time.Time `json:"stopped,omitzero"`
	Reason  string    `json:"reason,omitempty"`
}

// Version is one version of an object.
type Version struct {
	Ref
	At time.Time `json:"at"`
	// Change is one of the constants below.
	Change string `json:"change"`
	// Revision is a hash of the labels, annotations and spec; empty for a deleted object.
	Revision string `json:"revision,omitempty"`
	Source   string `json:"source,omitempty"`
	// Unseen is true if the object changed while the control plane was not running or could not record:
	// At is then when it started again.
	Unseen  bool      `json:"unseen,omitempty"`
	Created time.Time `json:"created,omitzero"`
	// Endpoints is the number of addresses of a service that receive requests; nil for an object.
	Endpoints *int `json:"endpoints,omitempty"`
	// Object is the object as JSON, where the answer contains it.
	Object json.RawMessage `json:"object,omitempty"`
}

// The changes of versions.
const (
	Found   = "found" // existed when the history began
	Created = "created"
	Updated = "updated"
	Deleted = "deleted"
)

// The names of versions of the kind MeshConfig: the settings of all of the mesh, and its networks.
const (
	MeshName     = "mesh"
	NetworksName = "meshNetworks"
)

// Unrecorded is what is not known of a moment in the past; it is as now. The history of services of
// clusters, or that of the mesh config, begins later; zero if it does not. Present is what objects of the
// Gateway API depend on that has no history, such as "Secrets". Current is the same of the answer itself,
// such as "the keys of token issuers".
type Unrecorded struct {
	ServicesSince time.Time `json:"services_since,omitzero"`
	MeshSince     time.Time `json:"mesh_since,omitzero"`
	Present       []string  `json:"present,omitempty"`
	Current       []string  `json:"current,omitempty"`
}

// Changes are the objects that differ between two moments.
type Changes struct {
	Replica string    `json:"replica"`
	From    time.Time `json:"from"`
	To      time.Time `json:"to"`
	Objects []Changed `json:"objects"`
}

// Changed is an object that differs. Before or After is nil if the object did not exist then.
type Changed struct {
	Ref
	Before *Version `json:"before,omitempty"`
	After  *Version `json:"after,omitempty"`
}
