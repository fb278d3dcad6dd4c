// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package sds

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/outrigger-mesh/outrigger/internal/durable"
	"github.com/outrigger-mesh/outrigger/internal/localuser"
)

// Names of the files that an Output writes.
const (
	keyFile   = "key.pem"
	chainFile = "cert-chain.pem"
	rootsFile = "root-cert.pem"
)

const (
	defaultMode = 0o600
	firstWrite  = time.Second // delay of the first retry of a write
	maxWrite    = time.Minute
)

// OutputConfig configures an Output.
type OutputConfig struct {
	Dir      string       // existing directory for the files
	Workload *Workload    // whose identity is written
	Mode     os.FileMode  // of the files; zero means 0600
	Logger   *slog.Logger // nil means slog.Default()
}

// Output writes the workload's identity to key.pem, cert-chain.pem and root-cert.pem, for
// programs that do not use the socket.
type Output struct {
	cfg OutputConfig
}

// NewOutput returns an Output. It starts nothing; see Run.
func NewOutput(cfg OutputConfig) (*Output, error) {
	if cfg.Workload == nil {
		return nil, errors.New("certificate files: there is no workload whose identity is written")
	}
	info, err := os.Stat(cfg.Dir)
	switch {
	case err != nil:
		return nil, fmt.Errorf("certificate files: %w; OUTPUT_CERTS must name a directory that exists", err)
	case !info.IsDir():
		return nil, fmt.Errorf("certificate files: %s is a file; OUTPUT_CERTS must name a directory", cfg.Dir)
	}
	if cfg.Mode == 0 {
		cfg.Mode = defaultMode
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Output{cfg: cfg}, nil
}

// Run writes each identity until ctx is done. It retries failed writes, which do not end
// the agent.
func (o *Output) Run(ctx context.Context) error {
	o.removeLeftovers()
	retry := backoff.NewExponentialBackOff(backoff.WithInitialInterval(firstWrite), backoff.WithMaxInterval(maxWrite), backoff.WithMaxElapsedTime(0))
	var again <-chan time.Time
	logged := ""
	for {
		changed := o.cfg.Workload.Changed()
		err := o.write(o.cfg.Workload.Current())
		if err == nil {
			again, logged = nil, ""
			retry.Reset()
		} else {
			again = time.After(retry.NextBackOff())
			if text := err.Error(); text != logged {
				o.cfg.Logger.Error("certificate files are not up to date", "err", err)
				logged = text
			}
		}
		// Cases: a new identity, another try, the end.
		select {
		case <-changed:
		case <-again:
		case <-ctx.Done():
			return nil
		}
	}
}

// write writes the files that differ. All of them are written under temporary names
// before the first file is replaced, so that key and chain match even if the disk is
// full.
func (o *Output) write(id *Identity) error {
	if id == nil {
		return nil
	}
	var next []prepared
	defer func() {
		for _, p := range next {
			_ = os.Remove(p.tmp) // it remains only after an error, which is returned
		}
	}()
	for _, file := range []struct {
		name string
		data []byte
	}{{keyFile, id.KeyPEM}, {chainFile, id.ChainPEM}, {rootsFile, id.RootsPEM}} {
		path := filepath.Join(o.cfg.Dir, file.name)
		if len(file.data) == 0 || holds(path, file.data) {
			continue
		}
		tmp, err := durable.Temp(o.cfg.Dir, file.name+durable.Suffix+"*", file.data, o.cfg.Mode)
		if err != nil {
			return fmt.Errorf("writing %s: %w", path, err)
		}
		next = append(next, prepared{tmp, path})
	}
	if len(next) == 0 {
		return nil
	}
	for len(next) > 0 {
		if err := os.Rename(next[0].tmp, next[0].path); err != nil {
			return fmt.Errorf("writing %s: %w", next[0].path, err)
		}
		next = next[1:]
	}
	if err := durable.SyncDir(o.cfg.Dir); err != nil {
		return err
	}
	o.cfg.Logger.Info("certificate files written", "path", o.cfg.Dir, "expires", id.NotAfter.UTC().Format(time.RFC3339))
	return nil
}

// holds reports whether a regular file of this user that only they may write has some
// content. Anything else is replaced: links, pipes, and files of other users.
func holds(path string, data []byte) bool {
	f, err := localuser.Open(path, 0o022)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }() // it was only read
	old, err := io.ReadAll(io.LimitReader(f, int64(len(data))+1))
	return err == nil && bytes.Equal(old, data)
}

// prepared is a file under its temporary name.
type prepared struct{ tmp, path string }

// removeLeftovers removes temporary files of a run that was killed during a write.
func (o *Output) removeLeftovers() {
	for _, name := range []string{keyFile, chainFile, rootsFile} {
		// The pattern is well formed, unless the directory's name is not.
		left, _ := filepath.Glob(filepath.Join(o.cfg.Dir, name+durable.Suffix+"*"))
		for _, path := range left {
			_ = os.Remove(path) // it is harmless if it remains
		}
	}
}
