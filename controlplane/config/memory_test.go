// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config_test

import (
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/storetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	storetest.Run(t, func(*testing.T) config.Store { return config.NewMemory("memory://") }, storetest.Options{})
}
