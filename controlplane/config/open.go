// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/filetree"
)

// OpenConfig holds what stores need.
type OpenConfig struct {
	Logger *slog.Logger
	// Registerer takes the metrics; nil means none.
	Registerer prometheus.Registerer
	// LastGood is a directory in which stores keep, each in a directory of its
	// own, the last good version of objects that went bad; empty means that
	// a restart loses them.
	LastGood string
	// Kinds are all that the caller wants; empty means every kind. A store
	// that is quicker for it serves no others.
	Kinds []model.Kind
	// Drivers opens the schemes that this package does not know, for example
	// "etcd", with the URL as it was written.
	Drivers map[string]Driver
}

// ErrUnknownScheme means that no kind of store has the scheme of a URL.
var ErrUnknownScheme = errors.New("the scheme is not known")

// Driver opens the store of a URL.
type Driver func(u *url.URL, cfg OpenConfig) (Store, error)

// examples shows how the URL of each scheme is written.
var examples = map[string]string{
	"fs":     "fs:///directory",
	"memory": "memory://",
	"etcd":   "etcd://host:2379/prefix",
	"k8s":    "k8s://",
	"xds":    "xds://host:15012?ca=/path",
}

// Open gives the store of a URL: fs:///directory, memory://, or one of the
// drivers.
func Open(address string, cfg OpenConfig) (Store, error) {
	s, err := cfg.open(address)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(countEvents(cfg.Registerer, s), countProblems(cfg.Registerer, s)); err != nil {
		return nil, err
	}
	return s, nil
}

func (cfg OpenConfig) open(address string) (Store, error) {
	u, err := url.Parse(address)
	if err != nil {
		var fault *url.Error // its text has the address
		if errors.As(err, &fault) {
			err = fault.Err
		}
		return nil, fmt.Errorf("config source %q is no URL: write %s: %w", withoutPassword(address), cfg.forms(), err)
	}
	shown := address
	if u.User != nil {
		shown = u.Redacted()
	}
	switch u.Scheme {
	case "fs":
		return openFiles(u, shown, cfg)
	case "memory":
		return NewMemory(address), nil
	case "":
		path, err := filepath.Abs(u.Path)
		if err != nil {
			path = "/" + u.Path
		}
		return nil, fmt.Errorf("config source %q has no scheme: write fs://%s", shown, path)
	}
	if open := cfg.Drivers[u.Scheme]; open != nil {
		return open(u, cfg)
	}
	return nil, fmt.Errorf("config source %q: %w: %s; write %s", shown, ErrUnknownScheme, u.Scheme, cfg.forms())
}

// withoutPassword gives a URL that cannot be read as people may see it.
func withoutPassword(address string) string {
	scheme, rest, ok := strings.Cut(address, "://")
	at := strings.LastIndexByte(rest, '@')
	if !ok || at < 0 {
		return address
	}
	user, _, _ := strings.Cut(rest[:at], ":")
	return scheme + "://" + user + ":xxxxx" + rest[at:]
}

// forms lists how the URLs of the known schemes are written.
func (cfg OpenConfig) forms() string {
	schemes := append(slices.Collect(maps.Keys(cfg.Drivers)), "fs", "memory")
	slices.Sort(schemes)
	for i, s := range schemes {
		schemes[i] = cmp.Or(examples[s], s+"://")
	}
	last := len(schemes) - 1
	return strings.Join(schemes[:last], ", ") + " or " + schemes[last]
}

func openFiles(u *url.URL, address string, cfg OpenConfig) (Store, error) {
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
	lastGood := cfg.LastGood
	if lastGood != "" {
		sum := sha256.Sum256([]byte(u.Path))
		lastGood = filepath.Join(lastGood, hex.EncodeToString(sum[:8]))
	}
	return NewFileStore(FileConfig{Dir: u.Path, Links: links, Name: address, LastGood: lastGood, Logger: cfg.Logger})
}
