// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"flag"
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/flagdoc"
)

var update = flag.Bool("update", false, "write docs/reference/flags-outrigger.md again")

//go:generate go test -run ^TestFlagsDoc$ . -update

func TestFlagsDoc(t *testing.T) {
	t.Parallel()
	if err := flagdoc.Check("../../docs/reference/flags-outrigger.md", newRootCommand(environment{}, nil, nil), *update); err != nil {
		t.Error(err)
	}
}
