// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package dns

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"slices"
	"time"

	miekg "github.com/miekg/dns"
)

const (
	// lookAfter is the polling interval of resolv.conf. A changed file is read once it has remained
	// unchanged for one interval, because programs write it in place.
	lookAfter = 2 * time.Second
	// maxResolvConf is the maximum number of bytes read from the file.
	maxResolvConf = 1 << 20
)

// ReadResolvConf reads servers and search domains from the first of the files that exists. A
// [Server] with this Upstream reloads the files when they change.
func ReadResolvConf(paths ...string) (Upstream, error) {
	var missing error
	for _, path := range paths {
		text, err := readFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			missing = err
			continue
		}
		var conf *miekg.ClientConfig
		if err == nil {
			conf, err = miekg.ClientConfigFromReader(bytes.NewReader(text))
		}
		if err != nil {
			return Upstream{}, fmt.Errorf("read the DNS servers of %s: %w", path, err)
		}
		u := Upstream{Search: conf.Search, files: paths}
		for _, server := range conf.Servers {
			u.Servers = append(u.Servers, net.JoinHostPort(server, conf.Port))
		}
		return u, nil
	}
	return Upstream{}, fmt.Errorf("read the DNS servers: %w", missing)
}

func readFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read-only: closing cannot lose data
	text, err := io.ReadAll(io.LimitReader(f, maxResolvConf+1))
	if err == nil && len(text) > maxResolvConf {
		err = fmt.Errorf("it has more than %d bytes, the limit for a resolv.conf", maxResolvConf)
	}
	return text, err
}

// stamp identifies a version of the files. The zero value means none.
type stamp struct {
	path string
	size int64
	time time.Time
	info fs.FileInfo // identity of the file
}

func (s stamp) same(other stamp) bool {
	return s.path == other.path && s.size == other.size && s.time.Equal(other.time) &&
		(s.info == nil) == (other.info == nil) && (s.info == nil || os.SameFile(s.info, other.info))
}

// look returns the stamp of the first of the files that exists.
func look(paths []string) stamp {
	for _, path := range paths {
		if info, err := os.Stat(path); err == nil {
			return stamp{path: path, size: info.Size(), time: info.ModTime(), info: info}
		}
	}
	return stamp{}
}

// follow reloads resolv.conf when it has changed, until ctx is done. If it is unusable, the servers
// remain unchanged.
func (s *Server) follow(ctx context.Context, files []string) {
	tick := time.NewTicker(lookAfter)
	defer tick.Stop()
	var read, seen stamp // read is the stamp of the version that was read, seen that of the last poll
	first := true        // the version that was read initially is unknown
	for {
		now := look(files)
		if settled := now.same(seen); settled && (first || !now.same(read)) {
			read, first = now, false
			s.reread(files)
		}
		seen = now
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reread applies the current content of resolv.conf.
func (s *Server) reread(files []string) {
	from, err := ReadResolvConf(files...)
	if err == nil && len(from.Servers) == 0 {
		err = errors.New("it names no server")
	}
	if err != nil {
		s.log.Warn("the system's DNS configuration has changed and cannot be used; the previous servers stay in use", "path", files[0], "err", err)
		return
	}
	old := s.upstream.Load()
	if slices.Equal(old.said, from.Servers) && slices.Equal(old.search, from.Search) {
		return
	}
	s.setUpstream(from.Servers, from.Search)
	s.flights.revive() // the state of the old servers does not apply to the new ones
	s.log.Info("the system's DNS configuration has changed", "path", files[0], "count", len(s.upstream.Load().servers))
}

// resolvers are the current upstream servers. The value is immutable.
type resolvers struct {
	said, search []string // as in resolv.conf
	servers      []string // without this server itself
}

// setUpstream replaces servers and search domains. It rebuilds the table, which contains names with
// search domains.
func (s *Server) setUpstream(servers, search []string) {
	r := &resolvers{said: servers, search: search}
	for _, server := range servers {
		// A query to itself would loop forever.
		if isOurs(server, s.cfg.Sockets) {
			s.log.Error("an upstream DNS server is this server itself, and is ignored: name the real one in resolv.conf, or in "+
				"/var/lib/istio/resolv.conf when this server listens on port 53", "address", server)
			continue
		}
		r.servers = append(r.servers, server)
	}
	if len(r.servers) == 0 {
		s.log.Error("there is no upstream DNS server: only names of the mesh are answered")
	}
	s.building.Lock()
	defer s.building.Unlock()
	old := s.upstream.Swap(r)
	if old != nil && slices.Equal(old.search, search) {
		return
	}
	s.zone = newZone(s.cfg.Domain, s.cfg.Namespace, search)
	if from := s.Table(); from != nil {
		s.build(from)
	}
}
