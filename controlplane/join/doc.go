// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

// Package join lets machines join the mesh by one line: [Tokens] makes one-time tokens and redeems
// each of them for an identity, once. [Token] is what the line contains. The control plane serves
// the first on its admin socket, the tool reads the second.
//
// Only a hash of each token is stored, with the identity and an authentication code whose key only
// the authority has: who can write to the store cannot make a token. The package never signs
// certificates and runs no goroutines.
package join
