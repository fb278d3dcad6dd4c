// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestShopDenied denies a workload of the running shop, and takes it back: its
// requests are refused, also on connections from before, while those of another
// workload are answered all the time.
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

	deny("spiffe://cluster.local/ns/default/sa/frontend\n")
	began := time.Now()
	eventually(t, 3*time.Minute, answers(denied, http.StatusServiceUnavailable))
	t.Logf("the first request of the denied workload fails after %s", time.Since(began))
	// Once its old connections are gone, none of its requests get through.
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

	status := func(want string) {
		t.Helper()
		eventually(t, 2*time.Minute, func() string {
			time.Sleep(20 * time.Millisecond)
			if out, err := s.tool("status"); err != nil || !strings.Contains(out, want) {
				return fmt.Sprintf("outrigger status lacks %q, %v:\n%s", want, err, out)
			}
			return ""
		})
	}
	status("acknowledged by 3 of 3 proxies.") // the denied one has lost its stream
	deny("spiffe://cluster.local/ns/default/sa/frontend\nbroken\n")
	status("its newest text is not in force: line 2: ")

	deny("# nobody\n")
	began = time.Now()
	eventually(t, 3*time.Minute, answers(denied, http.StatusOK))
	t.Logf("it is served again after %s", time.Since(began))
}
