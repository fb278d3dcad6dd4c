// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/singleflight"
)

// Config configures a [Cache].
type Config struct {
	// Dir is where the modules are kept, absolute. Default: /var/lib/istio/data.
	Dir string
	// FileDir is the directory below which file URLs may point. Empty: file
	// URLs are refused.
	FileDir string
	// DockerConfigDir holds the config.json with the credentials for
	// registries that are used where a plugin names none. Empty: none.
	DockerConfigDir string
	// InsecureRegistries are hosts, with the port if the URL has one, whose
	// TLS certificate is not verified and that may get credentials in
	// plaintext; "*" are all.
	InsecureRegistries []string
	// AllowedHosts are hosts (host, host:port, address or network) that may be
	// reached although they are loopback, link-local or metadata addresses.
	AllowedHosts []string
	// Expiry is for how long a module stays that nothing uses. Default: 24h.
	Expiry time.Duration
	// PurgeInterval is how often unused modules are looked for. Default: 1h.
	PurgeInterval time.Duration
	// HTTPTimeout bounds one attempt of a download by HTTP. Default: 15s.
	HTTPTimeout time.Duration
	// HTTPMaxAttempts is how often a download is attempted. Default: 5.
	HTTPMaxAttempts int
	// MaxCacheBytes bounds the modules on disk with the downloads under way.
	// The least recently used ones make room. Default: 1 GiB.
	MaxCacheBytes int64
	Logger        *slog.Logger
	Registerer    prometheus.Registerer // nil: no metrics
}

const (
	defaultDir           = "/var/lib/istio/data"
	defaultExpiry        = 24 * time.Hour
	defaultPurgeInterval = time.Hour
	defaultHTTPTimeout   = 15 * time.Second
	defaultHTTPAttempts  = 5
	defaultCacheBytes    = 1 << 30
	maxModuleBytes       = 256 << 20
	// maxDownloads is how many downloads run at a time.
	maxDownloads = 8
	// failureTTL is for how long a failed download is not attempted again:
	// one push is often several responses.
	failureTTL  = 10 * time.Second
	maxFailures = 256
)

// Cache fetches Wasm modules, keeps them and rewrites what names them.
type Cache struct {
	cfg     Config
	log     *slog.Logger
	metrics *metrics
	store   *store
	net     *network
	// maxModule is maxModuleBytes, less in tests.
	maxModule int64
	// pause is the first one between two attempts, shorter in tests.
	pause time.Duration

	flights singleflight.Group
	slots   chan struct{} // one for each download under way

	mu       sync.Mutex // guards what follows
	stopped  bool
	running  map[string]context.CancelFunc // downloads by key
	failures map[string]failure            // by key; bounded by maxFailures
	downs    sync.WaitGroup
}

// failure is a download that did not succeed lately.
type failure struct {
	err   error
	until time.Time
}

// New makes a cache, with the modules that an earlier agent left in its
// directory. The directory is made when the first module comes.
func New(cfg Config) (*Cache, error) {
	cfg.setDefaults()
	if !filepath.IsAbs(cfg.Dir) {
		return nil, fmt.Errorf("the directory for Wasm modules is %q; Envoy needs an absolute path", cfg.Dir)
	}
	if cfg.FileDir != "" && !filepath.IsAbs(cfg.FileDir) {
		return nil, fmt.Errorf("the directory for Wasm modules by file is %q; it must be an absolute path", cfg.FileDir)
	}
	net, err := newNetwork(cfg)
	if err != nil {
		return nil, err
	}
	m := newMetrics(cfg.Registerer)
	return &Cache{
		cfg: cfg, log: cfg.Logger, metrics: m, net: net, maxModule: maxModuleBytes, pause: firstBackoff,
		store:    newStore(storeConfig{dir: cfg.Dir, maxBytes: cfg.MaxCacheBytes, log: cfg.Logger, metrics: m}),
		slots:    make(chan struct{}, maxDownloads),
		running:  map[string]context.CancelFunc{},
		failures: map[string]failure{},
	}, nil
}

func (c *Config) setDefaults() {
	if c.Dir == "" {
		c.Dir = defaultDir
	}
	if c.Expiry <= 0 {
		c.Expiry = defaultExpiry
	}
	if c.PurgeInterval <= 0 {
		c.PurgeInterval = defaultPurgeInterval
	}
	if c.HTTPTimeout <= 0 {
		c.HTTPTimeout = defaultHTTPTimeout
	}
	if c.HTTPMaxAttempts <= 0 {
		c.HTTPMaxAttempts = defaultHTTPAttempts
	}
	if c.MaxCacheBytes <= 0 {
		c.MaxCacheBytes = defaultCacheBytes
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

// Run deletes modules that nothing uses any more, until ctx is done. Downloads
// that are under way then are given up.
func (c *Cache) Run(ctx context.Context) error {
	defer c.stop()
	tick := time.NewTicker(c.cfg.PurgeInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			c.store.purge(now.Add(-c.cfg.Expiry))
		}
	}
}

// stop ends the downloads and waits for them.
func (c *Cache) stop() {
	c.mu.Lock()
	c.stopped = true
	for _, cancel := range c.running {
		cancel()
	}
	c.mu.Unlock()
	c.downs.Wait()
	for _, t := range []http.RoundTripper{c.net.verified, c.net.unverified} {
		if t, ok := t.(*http.Transport); ok {
			t.CloseIdleConnections()
		}
	}
}
