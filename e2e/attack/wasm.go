// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package main

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// wasmAttacks serve malicious modules or configure them.
func wasmAttacks() []attack {
	const area = "Wasm"
	return []attack{
		{area, "modules at file URLs, at loopback and metadata addresses", "nothing is fetched; requests go on with FAIL_OPEN", badModules},
		{area, "a server and a registry that redirect to loopback, metadata and file URLs and endlessly, and send endless, slow, compressed, giant and altered modules and manifests", "nothing but the server is asked, no module is kept; requests go on with FAIL_OPEN; memory of the agent grows by less than 150 MB, its cache stays within its limit", badOrigins},
	}
}

const (
	wasmMemory = 150e6   // maximum memory, in bytes, that origins of modules may cost an agent
	wasmCache  = 8 << 20 // size of the cache in bytes
)

const modules = `apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: NAME, namespace: shop}
spec: {url: "URL", failStrategy: FAIL_OPEN, selector: {matchLabels: {app: pay}}}
---
`

// newCanary returns a listener that nothing may connect to, and a channel that receives a value if
// something does.
func newCanary(s *suite) (net.Listener, <-chan struct{}, error) {
	l, err := net.Listen("tcp", s.address()+":0")
	if err != nil {
		return nil, nil, err
	}
	reached := make(chan struct{}, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = conn.Close() // the connection itself is what counts
			select {
			case reached <- struct{}{}:
			default:
			}
		}
	}()
	return l, reached, nil
}

func badModules(ctx context.Context, s *suite) (outcome, error) {
	l, asked, err := newCanary(s)
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = l.Close() }() // it is no longer used
	urls := []string{"http://" + l.Addr().String() + "/m.wasm", "https://" + l.Addr().String() + "/m.wasm", "oci://" + l.Addr().String() + "/m:v1", "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd"}
	var plugins strings.Builder
	for i, url := range urls {
		plugins.WriteString(strings.NewReplacer("NAME", fmt.Sprintf("m%d", i), "URL", url).Replace(modules))
	}
	return withSidecar(ctx, s, map[string]string{"wasm.yaml": plugins.String()}, func(c *sidecar) (string, error) {
		// The agent logs the modules that it does not download.
		err := eventually(ctx, func() error {
			for _, url := range urls[:4] {
				if !strings.Contains(c.process.Output(), strings.TrimPrefix(url, "oci://")) {
					return fmt.Errorf("the agent does not say that it refuses %s", url)
				}
			}
			return nil
		})
		if err != nil {
			return "", err
		}
		if err := c.reaches(ctx, nil); err != nil {
			return "", err
		}
		select {
		case <-asked:
			return "", errors.New("a module was fetched from a loopback address")
		default:
		}
		code, dump, err := get(ctx, "http://"+c.ip+":15000/config_dump?include_eds")
		if err == nil && (code != http.StatusOK || strings.Contains(dump, "/etc/passwd")) {
			err = fmt.Errorf("the proxy was given /etc/passwd as a module, or does not answer: %d", code)
		}
		return fmt.Sprintf("%d of %d not fetched", len(urls), len(urls)), err
	})
}

// origin is a malicious server of modules and images.
type origin struct {
	address, canary string
	done            chan struct{} // closed on shutdown

	mu    sync.Mutex // guards asked
	asked map[string]bool
}

// paths returns the paths of the modules.
func (*origin) paths() []string {
	return []string{
		"http://ADDRESS/to-loopback", "http://ADDRESS/to-name", "http://ADDRESS/to-metadata", "http://ADDRESS/to-file", "http://ADDRESS/endless-redirect",
		"http://ADDRESS/endless", "http://ADDRESS/slow", "http://ADDRESS/silent", "http://ADDRESS/header", "http://ADDRESS/bomb", "http://ADDRESS/altered",
		"oci://ADDRESS/manifest:v1", "oci://ADDRESS/redirect:v1", "oci://ADDRESS/size:v1", "oci://ADDRESS/digest:v1", "oci://ADDRESS/bomb:v1", "oci://ADDRESS/token:v1",
	}
}

const wasmHead = "\x00asm\x01\x00\x00\x00"

// ServeHTTP implements http.Handler.
func (o *origin) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	part := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	name := part[0]
	if name == "v2" && len(part) > 1 {
		name = part[1]
	}
	o.mu.Lock()
	o.asked[r.URL.Path] = true
	o.mu.Unlock()
	to := map[string]string{
		"to-loopback": "http://" + o.canary + "/m.wasm", "to-name": "http://localhost:" + o.canary[strings.LastIndex(o.canary, ":")+1:] + "/m.wasm",
		"to-metadata": "http://169.254.169.254/latest/meta-data/", "to-file": "file:///etc/passwd", "endless-redirect": "/endless-redirect?" + r.URL.RawQuery + "x",
	}
	switch {
	case part[0] == "v2":
		o.serveRegistry(w, r, name, part)
	case to[name] != "":
		http.Redirect(w, r, to[name], http.StatusFound)
	case name == "slow":
		o.drip(w)
	case name == "silent":
		o.wait(r)
	case name == "header":
		w.Header().Set("X-Long", strings.Repeat("x", 1<<20))
	case name == "bomb":
		bomb(w)
	case name == "altered":
		_, _ = io.WriteString(w, wasmHead)
	default:
		endless(w, wasmHead)
	}
}

// serveRegistry implements an image registry.
func (o *origin) serveRegistry(w http.ResponseWriter, r *http.Request, name string, part []string) {
	const layer = "application/vnd.oci.image.layer.v1.tar+gzip"
	size := 100
	switch {
	case len(part) < 3 && name != "token":
		return // a response to the protocol version check
	case name == "token":
		w.Header().Set("WWW-Authenticate", fmt.Sprintf("Bearer realm=%q,service=x", "http://"+o.canary+"/token"))
		w.WriteHeader(http.StatusUnauthorized)
	case part[2] == "manifests" && name == "manifest":
		endless(w, `{"schemaVersion":2,"x":"`)
	case part[2] == "manifests":
		if name == "size" {
			size = 1 << 40
		}
		w.Header().Set("Content-Type", "application/vnd.oci.image.manifest.v1+json")
		digest := sha256.Sum256([]byte(name))
		_, _ = fmt.Fprintf(w, `{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json","config":{"mediaType":"application/vnd.oci.image.config.v1+json","size":2,"digest":"sha256:%x"},"layers":[{"mediaType":%q,"size":%d,"digest":"sha256:%x"}]}`,
			sha256.Sum256([]byte("{}")), layer, size, digest) // the client reports an incomplete response
	case name == "redirect":
		http.Redirect(w, r, "http://"+o.canary+"/blob", http.StatusTemporaryRedirect)
	case name == "bomb":
		bomb(w)
	case name == "size":
		endless(w, wasmHead)
	default:
		_, _ = io.WriteString(w, wasmHead)
	}
}

// endless writes a text followed by zeros without end.
func endless(w io.Writer, text string) {
	_, err := io.WriteString(w, text)
	for zeros := make([]byte, 64<<10); err == nil; {
		_, err = w.Write(zeros)
	}
}

// bomb writes a few kB that decompress to 4 GB, or less if the client stops reading.
func bomb(w io.Writer) {
	z := gzip.NewWriter(w)
	_, err := io.WriteString(z, wasmHead)
	zeros := make([]byte, 1<<20)
	for n := 0; err == nil && n < 4096; n++ {
		_, err = z.Write(zeros)
	}
	_ = z.Close() // the client reports an incomplete response
}

// drip writes single bytes at intervals.
func (o *origin) drip(w http.ResponseWriter) {
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for i := 0; ; i++ {
		if _, err := io.WriteString(w, wasmHead[i%len(wasmHead):i%len(wasmHead)+1]); err != nil || http.NewResponseController(w).Flush() != nil {
			return
		}
		select {
		case <-o.done:
			return
		case <-tick.C:
		}
	}
}

// wait sends no response until the client or the server ends.
func (o *origin) wait(r *http.Request) {
	select {
	case <-o.done:
	case <-r.Context().Done():
	}
}

// missing returns the names that have not been requested.
func (o *origin) missing() (names []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, url := range o.paths() {
		_, rest, _ := strings.Cut(url, "ADDRESS/")
		path := "/" + rest
		if image, isImage := strings.CutPrefix(url, "oci://ADDRESS/"); isImage {
			path = "/v2/" + strings.Replace(image, ":", "/manifests/", 1)
		}
		if !o.asked[path] {
			names = append(names, path)
		}
	}
	for _, name := range []string{"redirect", "digest", "bomb"} {
		path := fmt.Sprintf("/v2/%s/blobs/sha256:%x", name, sha256.Sum256([]byte(name)))
		if !o.asked[path] {
			names = append(names, path)
		}
	}
	return names
}

func badOrigins(ctx context.Context, s *suite) (outcome, error) {
	canary, err := net.Listen("tcp", s.address()+":0")
	if err != nil {
		return outcome{}, err
	}
	defer func() { _ = canary.Close() }() // it may not have been requested
	reached := make(chan struct{}, 1)
	go func() {
		for {
			conn, err := canary.Accept()
			if err != nil {
				return
			}
			_ = conn.Close() // the connection itself is what counts
			select {
			case reached <- struct{}{}:
			default:
			}
		}
	}()
	l, err := net.Listen("tcp", s.address()+":0")
	if err != nil {
		return outcome{}, err
	}
	o := &origin{address: l.Addr().String(), canary: canary.Addr().String(), done: make(chan struct{}), asked: map[string]bool{}}
	server := &http.Server{Handler: o, ReadHeaderTimeout: patience}
	go func() { _ = server.Serve(l) }()   // it ends with Close
	defer func() { _ = server.Close() }() // it is no longer used
	defer close(o.done)
	var plugins strings.Builder
	for i, url := range o.paths() {
		text := strings.NewReplacer("NAME", fmt.Sprintf("m%d", i), "URL", strings.ReplaceAll(url, "ADDRESS", o.address)).Replace(modules)
		if strings.HasSuffix(url, "/altered") {
			text = strings.Replace(text, "failStrategy", "sha256: "+strings.Repeat("a", 64)+", failStrategy", 1)
		}
		plugins.WriteString(text)
	}
	r := rig{config: map[string]string{"wasm.yaml": plugins.String()}, env: []string{
		"OUTRIGGER_WASM_ALLOWED_HOSTS=" + o.address, fmt.Sprintf("OUTRIGGER_WASM_CACHE_BYTES=%d", wasmCache), "WASM_HTTP_REQUEST_TIMEOUT=1s", "WASM_HTTP_REQUEST_MAX_RETRIES=1",
	}}
	return r.run(ctx, s, func(c *sidecar) (string, error) {
		err := eventually(ctx, func() error {
			if missing := o.missing(); len(missing) > 0 {
				return fmt.Errorf("the agent has not asked for %s", missing)
			}
			log := c.process.Output()
			for _, url := range o.paths() {
				if url = strings.TrimPrefix(strings.ReplaceAll(url, "ADDRESS", o.address), "oci://"); !strings.Contains(log, url) {
					return fmt.Errorf("the agent does not say that it has no %s", url)
				}
			}
			return c.reaches(ctx, nil)
		})
		if err != nil {
			return "", err
		}
		select {
		case <-reached:
			return "", errors.New("an address was reached that is not allowed")
		default:
		}
		used, err := c.process.usage()
		if err != nil {
			return "", err
		}
		if used.Peak > wasmMemory {
			return "", fmt.Errorf("the agent used %.1f MB", float64(used.Peak)/1e6)
		}
		kept, err := sizeOf(filepath.Join(c.dir, "var/lib/istio/data"), ".wasm")
		if err == nil && kept > 0 {
			err = fmt.Errorf("modules of %d bytes are kept", kept)
		}
		if err != nil {
			return "", err
		}
		parts, err := sizeOf(filepath.Join(c.dir, "var/lib/istio/data"), "")
		if err == nil && parts > 2*wasmCache {
			err = fmt.Errorf("the cache has %d bytes", parts)
		}
		n := len(o.paths())
		return fmt.Sprintf("%d of %d not kept; nothing else was asked", n, n), err
	})
}

// sizeOf returns the total size of the files below a directory whose names have the suffix.
func sizeOf(dir, suffix string) (n int64, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // removed meanwhile, or never created
		case err != nil:
			return err
		case !d.Type().IsRegular() || !strings.HasSuffix(path, suffix):
			return nil
		}
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			n += info.Size()
		}
		return err
	})
	return n, err
}
