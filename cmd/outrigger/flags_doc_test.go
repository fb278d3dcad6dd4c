// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/e2e/flagdoc"
	"github.com/outrigger-mesh/outrigger/e2e/goldentest"
)

//go:generate go test -run ^TestFlagsDoc$ . -update

func TestFlagsDoc(t *testing.T) {
	t.Parallel()
	if err := flagdoc.Check("../../docs/reference/flags-outrigger.md", newRootCommand(environment{}, nil, nil), *goldentest.Update); err != nil {
		t.Error(err)
	}
}
