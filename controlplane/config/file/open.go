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
	"strings"

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
	query := u.Query()
	status, err := statusOf(query, u.Path)
	if err != nil {
		return nil, fmt.Errorf("config source %q: %w", address, err)
	}
	query.Del(statusParameter)
	links, err := filetree.Links(query)
	if err != nil {
		return nil, fmt.Errorf("config source %q: %w", address, err)
	}
	state := cfg.State
	if state != "" {
		sum := sha256.Sum256([]byte(filepath.Clean(u.Path)))
		state = filepath.Join(state, hex.EncodeToString(sum[:8]))
	}
	return New(Config{Dir: u.Path, Links: links, Name: address, State: state, Status: status, Keep: cfg.Keep, Logger: cfg.Logger})
}

// statusParameter is the parameter of a URL that names the directory for the status of objects.
const statusParameter = "status"

// statusOf returns the directory for the status of objects that a query names, or "". It must be
// outside the directory of the objects, where nothing else is written.
func statusOf(query url.Values, objects string) (string, error) {
	dirs := query[statusParameter]
	if len(dirs) == 0 {
		return "", nil
	}
	dir := filepath.Clean(dirs[0])
	if len(dirs) > 1 || !filepath.IsAbs(dir) {
		return "", fmt.Errorf("status=%s is not one absolute path: write status=/directory", strings.Join(dirs, ","))
	}
	if rel, err := filepath.Rel(objects, dir); err == nil && filepath.IsLocal(rel) {
		return "", fmt.Errorf("status=%s is below the directory of the objects: name one outside", dir)
	}
	return dir, nil
}
