// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"flag"
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/flagdoc"
)

//go:generate go test -run ^TestFlagsDoc$ . -update

var update = flag.Bool("update", false, "write the document again")

func TestFlagsDoc(t *testing.T) {
	t.Parallel()
	if err := flagdoc.Check("../../docs/reference/flags-cni.md", newRootCommand(), *update); err != nil {
		t.Error(err)
	}
}
