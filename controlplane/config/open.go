// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package config

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/outrigger-mesh/outrigger/controlplane/model"
	"github.com/outrigger-mesh/outrigger/internal/tlspolicy"
	"github.com/prometheus/client_golang/prometheus"
)

// OpenConfig configures [Open] and its drivers.
type OpenConfig struct {
	// Name is the URL without its password. [Open] sets it for the drivers.
	Name   string
	Logger *slog.Logger
	// Registerer registers the metrics. It may be nil.
	Registerer prometheus.Registerer
	// State is the directory for data that the source of a store cannot contain:
	// the status of objects, and the last good versions of invalid objects. Each
	// store has a subdirectory. Empty means that a restart loses both.
	State string
	// Keep makes stores write last good versions to State. Only one process may do
	// so; others with the same State read them.
	Keep bool
	// Kinds are the kinds that the caller needs; empty means every kind. A store
	// may serve only these if that is faster.
	Kinds []model.Kind
	// TLS restricts the connections to stores, but those to API servers.
	TLS tlspolicy.Policy
	// Drivers opens the stores of each scheme, for example "etcd".
	Drivers map[string]Driver
}

// ErrUnknownScheme means that no driver has the scheme of a URL.
var ErrUnknownScheme = errors.New("the scheme is unknown")

// Driver opens the store of a URL.
type Driver func(u *url.URL, cfg OpenConfig) (Store, error)

// examples has an example URL of each scheme.
var examples = map[string]string{
	"fs":     "fs:///directory",
	"memory": "memory://",
	"etcd":   "etcd://host:2379/prefix",
	"k8s":    "k8s://",
	"xds":    "xds://host:15012?ca=/path",
}

// Open returns the store of a URL, which the driver of its scheme opens.
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
		return nil, fmt.Errorf("config source %q is not a URL: write %s: %w", withoutPassword(address), cfg.forms(), err)
	}
	shown := address
	if u.User != nil {
		shown = u.Redacted()
	}
	if u.Scheme == "" {
		path, err := filepath.Abs(u.Path)
		if err != nil {
			path = "/" + u.Path
		}
		return nil, fmt.Errorf("config source %q has no scheme: write fs://%s", shown, path)
	}
	cfg.Name = shown
	if open := cfg.Drivers[u.Scheme]; open != nil {
		return open(u, cfg)
	}
	return nil, fmt.Errorf("config source %q: %w: %s; write %s", shown, ErrUnknownScheme, u.Scheme, cfg.forms())
}

// withoutPassword returns a URL that cannot be parsed, without its password.
func withoutPassword(address string) string {
	scheme, rest, ok := strings.Cut(address, "://")
	at := strings.LastIndexByte(rest, '@')
	if !ok || at < 0 {
		return address
	}
	user, _, _ := strings.Cut(rest[:at], ":")
	return scheme + "://" + user + ":xxxxx" + rest[at:]
}

// forms returns example URLs of the known schemes.
func (cfg OpenConfig) forms() string {
	schemes := slices.Collect(maps.Keys(cfg.Drivers))
	slices.Sort(schemes)
	for i, s := range schemes {
		schemes[i] = cmp.Or(examples[s], s+"://")
	}
	last := len(schemes) - 1
	if last <= 0 {
		return strings.Join(schemes, "")
	}
	return strings.Join(schemes[:last], ", ") + " or " + schemes[last]
}
