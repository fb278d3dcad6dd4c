// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package file

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"path/filepath"

	"github.com/outrigger-mesh/outrigger/controlplane/config"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

// Open is the [config.Driver] of fs:///directory.
func Open(u *url.URL, cfg config.OpenConfig) (config.Store, error) {
	address := cmp.Or(cfg.Name, u.Redacted())
	if u.Host != "" {
		return nil, fmt.Errorf("config source %q names the host %q: write three slashes, fs:///%s%s", address, u.Host, u.Host, u.Path)
	}
	if u.Path == "" {
		return nil, fmt.Errorf("config source %q names no directory: write fs:///directory", address)
	}
	links, err := filetree.Links(u.Query())
	if err != nil {
		return nil, fmt.Errorf("config source %q: %w", address, err)
	}
	state := cfg.State
	if state != "" {
		sum := sha256.Sum256([]byte(filepath.Clean(u.Path)))
		state = filepath.Join(state, hex.EncodeToString(sum[:8]))
	}
	return New(Config{Dir: u.Path, Links: links, Name: address, State: state, Keep: cfg.Keep, Logger: cfg.Logger})
}
