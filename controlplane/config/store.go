// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
)

// Store is a source of objects. What it returns is shared: nobody may write
// to it.
type Store interface {
	// List gives the objects of a kind in canonical order ([model.Older]);
	// an empty namespace means all of them.
	List(kind model.Kind, namespace string) []*model.Config
	// Get gives one object, nil when there is none.
	Get(key model.Key) *model.Config
	// RegisterEventHandler adds a function that hears of every change. It
	// must be called before Run. Handlers are called in order, one change
	// at a time, and never before the store holds the new state.
	RegisterEventHandler(handler func(model.Change))
	// Run keeps the store up to date until ctx is done.
	Run(ctx context.Context) error
	// HasSynced reports whether the first full load was delivered; Synced
	// is closed when it was.
	HasSynced() bool
	Synced() <-chan struct{}
	// Problems lists what is wrong now, in a stable order.
	Problems() []model.Problem
}

// OpenConfig holds what every store needs.
type OpenConfig struct {
	Logger *slog.Logger
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
	// LastGood is a directory in which stores keep, each in a directory of its
	// own, the last good version of objects that went bad; empty means that
	// a restart loses them.
	LastGood string
}

// Open gives the store for a URL: fs:///directory.
func Open(address string, cfg OpenConfig) (Store, error) {
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("config source %q is no URL: write fs:///directory: %w", address, err)
	}
	switch u.Scheme {
	case "fs":
		if u.Host != "" {
			return nil, fmt.Errorf("config source %q names the host %q: write three slashes, fs:///%s%s", address, u.Host, u.Host, u.Path)
		}
		if u.Path == "" {
			return nil, fmt.Errorf("config source %q names no directory: write fs:///directory", address)
		}
		lastGood := cfg.LastGood
		if lastGood != "" {
			sum := sha256.Sum256([]byte(u.Path))
			lastGood = filepath.Join(lastGood, hex.EncodeToString(sum[:8]))
		}
		return NewFileStore(FileConfig{Dir: u.Path, Name: address, LastGood: lastGood, Logger: cfg.Logger, Registerer: cfg.Registerer})
	case "":
		return nil, fmt.Errorf("config source %q has no scheme: write fs://%s", address, u.Path)
	}
	return nil, fmt.Errorf("config source %q has the scheme %q, which this version does not serve: write fs:///directory", address, u.Scheme)
}
