// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"crypto/sha256"
	"encoding/hex"
)

// Names of the secrets that are served.
const (
	NameDefault = "default" // chain and key of the workload
	NameRoots   = "ROOTCA"  // roots of the mesh
)

// secretType is the type URL of a secret.
const secretType = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"

// served reports whether a secret of this name can ever be answered.
func served(name string) bool { return name == NameDefault || name == NameRoots }

// version returns the version of a secret. It is a hash of its public part:
// nothing that is sent in the clear is derived from the key.
func version(id *Identity, name string) string {
	public := id.RootsPEM
	if name == NameDefault {
		public = id.ChainPEM
	}
	sum := sha256.Sum256(public)
	return hex.EncodeToString(sum[:8])
}
