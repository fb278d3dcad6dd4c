// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package join

import "time"

// Path is the path on the admin socket to which a Request for a token is posted.
const Path = "/join"

// Request asks for a join token.
type Request struct {
	Namespace      string `json:"namespace"`
	ServiceAccount string `json:"serviceAccount,omitempty"` // empty means that of Group
	Group          string `json:"group,omitempty"`          // WorkloadGroup; empty means the only one of ServiceAccount, or none
	Address        string `json:"address,omitempty"`        // of the control plane; empty means that of the mesh config
	Seconds        int64  `json:"seconds,omitempty"`        // lifetime; zero means DefaultTTL
}

// Answer is the answer to a Request.
type Answer struct {
	Token    string    `json:"token"`
	Identity string    `json:"identity"`
	Group    string    `json:"group,omitempty"`
	Address  string    `json:"address"`
	Expires  time.Time `json:"expires"`
}
