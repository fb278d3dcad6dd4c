// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import "github.com/outrigger-mesh/outrigger/controlplane/model"

// Left returns the problem of an object for which no valid resource can be built.
func Left(object model.Key, err error) model.Problem {
	return model.Problem{Object: object, Reason: "no valid Envoy configuration can be made of this object, it is left out: " + err.Error()}
}
