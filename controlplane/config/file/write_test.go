// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file_test

import (
	"log/slog"
	"sync"
	"testing"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/controlplane/config/file"
	"github.com/outrigger-mesh/outrigger/controlplane/config/storetest"
)

// directories opens file stores, each in a directory of its own.
type directories struct{ of sync.Map }

func (d *directories) open(t *testing.T) config.Store { return d.openDir(t, t.TempDir()) }

func (d *directories) openDir(t *testing.T, dir string) config.Store {
	t.Helper()
	s, err := file.New(file.Config{Dir: dir, State: dir + "-state", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))})
	if err != nil {
		t.Fatal(err)
	}
	d.of.Store(s, dir)
	return s
}

func (d *directories) dir(s config.Store) string {
	dir, _ := d.of.Load(s)
	return dir.(string)
}

func (d *directories) reopen(t *testing.T, s config.Store) config.Store {
	t.Helper()
	return d.openDir(t, d.dir(s))
}

func TestFileStore(t *testing.T) {
	t.Parallel()
	d := &directories{}
	storetest.Run(t, d.open, storetest.Options{Reopen: d.reopen})
}
