// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package status

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// dialFrom connects from the given local address.
func dialFrom(t *testing.T, source, address string) *net.TCPConn {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	conn, err := dialer.DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() }) // the server may have closed it
	return conn.(*net.TCPConn)
}

// getFrom sends a request from the given local address on a new connection and returns the status
// and the body.
func getFrom(t *testing.T, source, url string) (int, string, error) {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
	transport := &http.Transport{DialContext: dialer.DialContext, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: transport, Timeout: 2 * time.Minute}).Get(url)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }() // read-only: closing cannot lose data
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// TestProbesAtConnectionLimit checks that every probe is answered while other peers open more
// connections than are allowed, whatever they do with them. The kubelet's address is known in one
// case and unknown in the other. The test is not parallel, because it opens hundreds of files.
func TestProbesAtConnectionLimit(t *testing.T) {
	app := upstream(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "fine") })
	probers, err := ParseProbers(`{"` + livez + `": {"httpGet": {"port": ` + portOfAddr(t, app.URL) + `}, "timeoutSeconds": 120}}`)
	if err != nil {
		t.Fatal(err)
	}
	const metrics, ready = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "GET /healthz/ready HTTP/1.1\r\nHost: x\r\n\r\n"
	big := upstream(t, text("# TYPE big_total counter\n"+strings.Repeat("big_total{text=\"as much as the kernel holds, and more\"} 1\n", 100_000)))
	s, address := serve(t, func(cfg *Config) {
		cfg.Probers, cfg.EnvoyMetricsURL = probers, big.URL
		cfg.HookSources.HostIP = netip.MustParseAddr("127.3.0.1")
	})
	for _, c := range []struct{ name, send string }{
		{"silent", ""},
		{"idle", ready},
		{"slow headers", "GET /healthz/ready HTTP/1.1\r\nX-A: " + strings.Repeat("a", 10_000)},
		{"slow bodies", "POST /healthz/ready HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\na"},
		{"chunks", "POST /healthz/ready HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\na"},
		{"metrics unread", strings.Repeat(metrics, 20)},
		{"answers unread", strings.Repeat(ready, 1000)},
	} {
		for name, sources := range map[string]int{"one stranger": 1, "several": 40, "many": maxConns} {
			t.Run(c.name+"/"+name, func(t *testing.T) {
				for i := range maxConns {
					conn := dialFrom(t, fmt.Sprintf("127.2.%d.%d", i%sources/200, 1+i%sources%200), address)
					_ = conn.SetReadBuffer(2048) // limits the data in flight
					go func() { _, _ = io.WriteString(conn, c.send) }()
				}
				for range 3 {
					for _, kubelet := range []string{"127.3.0.1", "127.3.0.2"} {
						for path, want := range map[string]string{"/healthz/ready": "ready", livez: "fine"} {
							code, body, err := getFrom(t, kubelet, "http://"+address+path)
							if err != nil || code != http.StatusOK || !strings.Contains(body, want) {
								t.Errorf("%s from %s: got %d %q, error %v", path, kubelet, code, body, err)
							}
						}
					}
				}
				s.scrapes.mu.Lock()
				defer s.scrapes.mu.Unlock()
				if n := len(s.scrapes.running); n > maxScrapes {
					t.Errorf("%d scrapes are running, want at most %d", n, maxScrapes)
				}
			})
		}
	}
}

// TestScrapesAreShared occupies all slots for scrapes with peers that read nothing. They must not
// keep another scraper out, and no peer may get more than its share.
func TestScrapesAreShared(t *testing.T) {
	t.Parallel()
	var hold sync.RWMutex
	hold.Lock()
	begun := make(chan struct{}, 2*maxScrapes)
	reg, address := serveMerged(t, text(envoyText), func(w http.ResponseWriter, r *http.Request) {
		if !hold.TryRLock() {
			begun <- struct{}{}
			<-r.Context().Done()
			return
		}
		hold.RUnlock()
		text(appText)(w, r)
	})
	var conns []*net.TCPConn
	for i := range maxScrapes {
		conn := dialFrom(t, fmt.Sprintf("127.2.0.%d", 1+i/maxScrapesPerSource), address)
		if _, err := io.WriteString(conn, "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		conns = append(conns, conn)
		<-begun
	}
	code, body, err := getFrom(t, "127.2.0.1", "http://"+address+"/metrics")
	if err != nil || code != http.StatusServiceUnavailable || !strings.HasPrefix(body, "too many scrapes") {
		t.Errorf("another scrape of the same source: got %d %q, error %v", code, body, err)
	}
	if n := failuresOf(t, reg); n != 1 {
		t.Errorf("%v failures were counted, want 1", n)
	}
	hold.Unlock()
	for _, scraper := range []string{"127.2.0.9", "127.0.0.1"} {
		code, body, err = getFrom(t, scraper, "http://"+address+"/metrics")
		if err != nil || code != http.StatusOK || !strings.Contains(body, "app_requests_total") || !strings.Contains(body, "envoy_server_live") {
			t.Errorf("a scrape from %s: got %d %q, error %v", scraper, code, body, err)
		}
	}
	if n := failuresOf(t, reg); n != 1 {
		t.Errorf("%v failures were counted, want still 1, because an interrupted scrape is not a failure", n)
	}
	for _, conn := range conns {
		_ = conn.Close() // like clients that give up
	}
}

// TestScrapeSlots checks the rules without a network.
func TestScrapeSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s scrapeSlots
		var cut []string
		enter := func(source string, exempt bool) *scrapeSlot {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var mine *scrapeSlot
			mine = &scrapeSlot{source: netip.MustParseAddr(source), exempt: exempt, end: func() {
				cut = append(cut, source)
				go s.leave(mine)
			}}
			if !s.enter(ctx, mine) {
				return nil
			}
			return mine
		}
		first := enter("10.0.0.1", false)
		for range maxScrapesPerSource - 1 {
			enter("10.0.0.1", false)
		}
		if enter("10.0.0.1", false) != nil {
			t.Error("a source has more than its share")
		}
		s.leave(first)
		if enter("10.0.0.1", false) == nil {
			t.Error("the released slot is not free")
		}
		for range maxScrapes - maxScrapesPerSource {
			if enter("127.0.0.1", true) == nil {
				t.Error("loopback is limited to a share")
			}
		}
		if enter("127.0.0.1", true) != nil || len(cut) != 0 {
			t.Errorf("the source with the most slots got another one; interrupted: %v", cut)
		}
		if enter("10.0.0.2", false) == nil || strings.Join(cut, " ") != "127.0.0.1" {
			t.Errorf("interrupted: %v, want a scrape of the source with the most slots", cut)
		}
		if len(s.running) != maxScrapes {
			t.Errorf("%d are running, want %d", len(s.running), maxScrapes)
		}
		// If each source has one scrape, a new source waits until the oldest scrape has had its
		// turn.
		s.running, cut = nil, nil
		for i := range maxScrapes {
			enter(fmt.Sprintf("10.0.1.%d", i), false)
		}
		if enter("10.0.2.1", false) != nil || len(cut) != 0 {
			t.Errorf("interrupted too early: %v", cut)
		}
		time.Sleep(scrapeTurn)
		if enter("10.0.2.2", false) == nil || strings.Join(cut, " ") != "10.0.1.0" {
			t.Errorf("interrupted: %v, want the oldest", cut)
		}
	})
}
