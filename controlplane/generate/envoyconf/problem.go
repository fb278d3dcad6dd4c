// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package envoyconf

import "github.com/outrigger-mesh/outrigger/controlplane/model"

// Left returns the problem of an object for which no valid resource can be built.
func Left(object model.Key, err error) model.Problem {
	return model.Problem{Object: object, Reason: "this object cannot be converted to a valid Envoy configuration and is ignored: " + err.Error()}
}
