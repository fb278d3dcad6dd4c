// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/internal/durable"
	"github.com/outrigger-mesh/outrigger/internal/localuser"
)

// maxDeposit is the maximum size of a value in bytes.
const maxDeposit = 4 << 10

// Dir is a Depository in a directory, with a file for each value. Processes may share it.
type Dir struct {
	path string
	mu   sync.Mutex // makes the check of the number and the write one step in this process
}

var _ config.Depository = (*Dir)(nil)

// NewDir returns a depository in a directory, which the first Deposit creates with mode 0700.
func NewDir(path string) *Dir { return &Dir{path: path} }

// Deposit implements [config.Depository]. The time of the file is that of the end of its life.
func (d *Dir) Deposit(_ context.Context, name string, value []byte, life time.Duration) error {
	if err := os.MkdirAll(d.path, 0o700); err != nil {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	number, err := d.sweep(time.Now())
	if err != nil {
		return err
	}
	if number >= config.MaxDeposits {
		return fmt.Errorf("%w: there are %d in %s", config.ErrFull, number, d.path)
	}
	temp, err := durable.Temp(d.path, "."+name+".*", value, 0o600)
	if err != nil {
		return err
	}
	end := time.Now().Add(life)
	err = os.Chtimes(temp, end, end)
	if err == nil {
		err = os.Rename(temp, filepath.Join(d.path, name))
	}
	if err != nil {
		_ = os.Remove(temp) // return the first error
		return err
	}
	return durable.SyncDir(d.path)
}

// sweep removes what is too old, and returns the number of files that are left.
func (d *Dir) sweep(now time.Time) (left int, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return 0, err
	}
	for _, e := range entries {
		info, err := e.Info()
		// A temporary file is renamed at once, or was left by a process that was killed.
		old := err == nil && (now.After(info.ModTime()) && !strings.HasPrefix(e.Name(), ".") || now.Sub(info.ModTime()) > time.Hour)
		if old {
			_ = os.Remove(filepath.Join(d.path, e.Name())) // another process may have
			continue
		}
		left++
	}
	return left, nil
}

// Withdraw implements [config.Depository]. Only one call can remove a file.
func (d *Dir) Withdraw(_ context.Context, name string) ([]byte, error) {
	path := filepath.Join(d.path, filepath.Base(name))
	f, err := localuser.Open(path, 0o077)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	value, err := io.ReadAll(io.LimitReader(f, maxDeposit))
	info, statErr := f.Stat()
	if err := errors.Join(err, statErr, f.Close()); err != nil {
		return nil, err
	}
	err = os.Remove(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		err = durable.SyncDir(d.path) // not valid again after the power fails
	}
	if err != nil || time.Now().After(info.ModTime()) {
		return nil, err
	}
	return value, nil
}
