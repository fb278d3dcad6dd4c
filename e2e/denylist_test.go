// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestShopDenied denies a workload of the running shop, and allows it again: its requests are
// refused, also on existing connections, while those of another workload always succeed. The
// metrics ports that require certificates refuse it too, and a certificate with a denied serial
// number.
func TestShopDenied(t *testing.T) {
	s := newShop(t)
	list := filepath.Join(s.dir, "denied")
	deny := func(text string) {
		t.Helper()
		if err := os.WriteFile(list+"~", []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(list+"~", list); err != nil {
			t.Fatal(err)
		}
	}
	deny("# nobody\n")
	s.setenv("outrigger-control", "OUTRIGGER_DENY_LIST", list)
	s.setenv("outrigger-agent", "mkdir -p certs; ENVOY_SECURE_METRICS_PORT=15091 ENVOY_SECURE_MERGED_METRICS_PORT=15092 OUTPUT_CERTS", "./certs")
	s.start()
	s.waitFor("Ctrl-C ends it", 2*time.Minute)
	answers := func(client *http.Client, want int) func() string {
		return func() string {
			time.Sleep(20 * time.Millisecond)
			if code, body, _, err := get(t.Context(), client, catalog, nil); err != nil || code != want {
				return fmt.Sprintf("got %d, %v: %.200s; want %d", code, err, body, want)
			}
			return ""
		}
	}
	denied, other := throughProxy(t, frontend), throughProxy(t, orders)
	for _, client := range []*http.Client{denied, other} {
		eventually(t, 2*time.Minute, answers(client, http.StatusOK))
	}

	scrapers := map[string]*http.Client{"frontend": s.scraper("frontend"), "orders": s.scraper("orders")}
	scraped := func(want map[string]int) {
		t.Helper()
		for name, code := range want {
			for _, port := range []string{"15091", "15092"} {
				url := "https://" + catalogV1 + ":" + port + "/stats/prometheus"
				eventually(t, 2*time.Minute, func() string {
					time.Sleep(20 * time.Millisecond)
					if got, body, _, err := get(t.Context(), scrapers[name], url, nil); err != nil || got != code {
						return fmt.Sprintf("%s: got %d, %v for %s: %.200s; want %d", url, got, err, name, body, code)
					}
					return ""
				})
			}
		}
	}
	scraped(map[string]int{"frontend": http.StatusOK, "orders": http.StatusOK})

	deny("spiffe://cluster.local/ns/default/sa/frontend\n")
	began := time.Now()
	eventually(t, 3*time.Minute, answers(denied, http.StatusServiceUnavailable))
	t.Logf("the first request of the denied workload fails after %s", time.Since(began))
	// Once its old connections are closed, all of its requests fail.
	for row := 0; row < 50; row++ {
		if complaint := answers(denied, http.StatusServiceUnavailable)(); complaint != "" {
			row = 0
			if time.Since(began) > 3*time.Minute {
				t.Fatal(complaint)
			}
		}
		if complaint := answers(other, http.StatusOK)(); complaint != "" {
			t.Fatalf("a workload that is not denied: %s", complaint)
		}
	}
	t.Logf("50 requests in a row fail after %s", time.Since(began))
	// Connections of scrapers stay open: the next request on them is refused.
	scraped(map[string]int{"frontend": http.StatusForbidden, "orders": http.StatusOK})

	status := func(fails bool, want string) {
		t.Helper()
		eventually(t, 2*time.Minute, func() string {
			time.Sleep(20 * time.Millisecond)
			if out, err := s.tool("status"); (err != nil) != fails || !strings.Contains(out, want) {
				return fmt.Sprintf("outrigger status lacks %q, %v:\n%s", want, err, out)
			}
			return ""
		})
	}
	status(false, "acknowledged by 3 of 3 proxies.") // the stream of the denied workload was closed
	deny("spiffe://cluster.local/ns/default/sa/frontend\nbroken\n")
	status(true, "the newest text of the deny list is not in force: line 2: ")

	deny("# nobody\n")
	began = time.Now()
	eventually(t, 3*time.Minute, answers(denied, http.StatusOK))
	t.Logf("it is served again after %s", time.Since(began))
	scraped(map[string]int{"frontend": http.StatusOK, "orders": http.StatusOK})

	leaf := scrapers["orders"].Transport.(*http.Transport).TLSClientConfig.Certificates[0].Leaf
	deny(fmt.Sprintf("serial %X\n", leaf.SerialNumber))
	scraped(map[string]int{"orders": http.StatusForbidden, "frontend": http.StatusOK})
}

// scraper returns a client that presents the certificate of a workload.
func (s *shop) scraper(workload string) *http.Client {
	s.t.Helper()
	files, err := filepath.Glob(filepath.Join(s.stateDir(), "*", workload+"*", "certs", "cert-chain.pem"))
	if err != nil || len(files) != 1 {
		s.t.Fatalf("the certificates of %s are %v, %v; want one", workload, files, err)
	}
	pair, err := tls.LoadX509KeyPair(files[0], filepath.Join(filepath.Dir(files[0]), "key.pem"))
	if err != nil {
		s.t.Fatal(err)
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true}} //nolint:gosec // the server is not what is examined
	s.t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: time.Minute}
}
