// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"
)

// The addresses of Bookinfo that the test asks.
const (
	bookinfoPage    = "http://productpage:9080/productpage"
	bookinfoReviews = "127.1.9.6" // version 3
	publisher       = "127.0.0.1:19090"
)

// bookPage contains the parts of the product page that the test checks.
type bookPage struct {
	Details      *struct{ Publisher string }
	DetailsError string
	Reviews      *struct {
		Version string
		Reviews []struct {
			Rating *struct {
				Color, Error string
			}
		}
	}
	ReviewsError string
}

// version is that of the reviews, and the colour of their stars.
func (p bookPage) version() string {
	if p.Reviews == nil {
		return "none: " + p.ReviewsError
	}
	out := p.Reviews.Version
	if r := p.Reviews.Reviews[0].Rating; r != nil {
		out += " " + r.Color + r.Error
	}
	return out
}

// TestBookinfo runs the bookshop, and applies the rules of its tutorials in order with outrigger
// apply.
func TestBookinfo(t *testing.T) {
	t.Parallel()
	s := newExample(t, "bookinfo")
	s.edit("mesh.yaml", "[../../bin/bookinfo, details,", "[../../bin/bookinfo, details, --external, \"http://publisher.example.com/\",")
	l, err := net.Listen("tcp", publisher)
	if err != nil {
		t.Fatal(err)
	}
	outside := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `{"publisher": "Outside Press"}`) // the page shows missing parts
	})}
	go func() { _ = outside.Serve(l) }() // it ends with the test
	t.Cleanup(func() { _ = outside.Close() })
	s.start()
	s.waitFor("Ctrl-C ends it", time.Minute)
	s.tries(t)

	// Without rules all versions take turns, and no external service is known.
	seen := map[string]bool{}
	eventually(t, 2*time.Minute, func() string {
		p := s.page(t, "")
		seen[p.version()] = true
		if p.Details != nil || !strings.Contains(p.DetailsError, "ServiceEntry") {
			return fmt.Sprintf("details without a ServiceEntry for the publisher: %+v", p)
		}
		if !seen["v1"] || !seen["v2 black"] || !seen["v3 red"] {
			return fmt.Sprintf("all versions should take turns: %v", seen)
		}
		return ""
	})
	s.apply(t, "service-entry-publisher")
	eventually(t, 2*time.Minute, func() string {
		if p := s.page(t, ""); p.Details == nil || p.Details.Publisher != "Outside Press" {
			return fmt.Sprintf("details with a ServiceEntry for the publisher: %+v", p)
		}
		return ""
	})

	s.apply(t, "virtual-service-all-v1")
	s.wantOnly(t, "v1")
	s.apply(t, "virtual-service-reviews-test-v2")
	s.wantVersion(t, "jason", "v2 black")
	s.wantVersion(t, "somebody", "v1")

	s.apply(t, "virtual-service-ratings-test-abort")
	s.wantVersion(t, "jason", `v2 the ratings are not available: .* 500 `)
	s.wantVersion(t, "somebody", "v1")
	s.apply(t, "virtual-service-ratings-test-delay")
	eventually(t, 2*time.Minute, func() string {
		began := time.Now()
		got, took := s.page(t, "jason").version(), time.Since(began)
		if !strings.HasPrefix(got, "none: ") || took < 6*time.Second {
			return fmt.Sprintf("with 7 s for a rating the user jason sees the reviews %s after %s", got, took)
		}
		return ""
	})
	s.wantVersion(t, "somebody", "v1")

	s.apply(t, "virtual-service-ratings-delay-2s", "virtual-service-reviews-v2-timeout")
	s.wantVersion(t, "", `none: .* 504 `)

	s.apply(t, "virtual-service-reviews-50-v3")
	s.wantVersion(t, "", "v3 red") // before this there were no reviews
	s.wantHalf(t, "v1", "v3 red")

	s.apply(t, "virtual-service-reviews-v1-mirror-v3")
	s.wantOnly(t, "v1")
	before := inboundRequests(t, bookinfoReviews)
	for range 20 {
		if got := s.page(t, "").version(); got != "v1" {
			t.Errorf("all users see v1, but %s responds", got)
		}
	}
	eventually(t, 2*time.Minute, func() string {
		if got := inboundRequests(t, bookinfoReviews) - before; got < 20 {
			return fmt.Sprintf("version 3 got %d copies of 20 requests", got)
		}
		return ""
	})

	// The rules contain objects twice. All of them are deleted at once.
	if out, err := s.tool("delete", "-f", filepath.Join(s.dir, "rules"), "--ignore-not-found"); err != nil {
		t.Fatalf("delete the rules: %v\n%s", err, out)
	}
	if out, err := s.tool("get", "vs,se"); err != nil || !strings.Contains(out, "no objects found") {
		t.Errorf("objects without the rules: %v\n%s", err, out)
	}
	s.wantVersion(t, "", "v3 red") // all versions take turns again
}

// wantHalf sends requests and fails unless each of two versions answers about half of them.
func (s *shop) wantHalf(t *testing.T, one, other string) {
	t.Helper()
	// Concurrently, because requests to version 3 wait for its ratings.
	versions := make(chan string)
	for range 40 {
		go func() {
			p, err := s.ask(t, "")
			if err != nil {
				p.ReviewsError = err.Error()
			}
			versions <- p.version()
		}()
	}
	count := map[string]int{}
	for range 40 {
		count[<-versions]++
	}
	if count[one]+count[other] != 40 || count[one] < 8 || count[other] < 8 {
		t.Errorf("of 40 requests half should go to %s and half to %s: %v", one, other, count)
	}
}

// page requests the product page as a user.
func (s *shop) page(t *testing.T, user string) bookPage {
	t.Helper()
	p, err := s.ask(t, user)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// ask is like page, for any goroutine.
func (s *shop) ask(t *testing.T, user string) (p bookPage, err error) {
	t.Helper()
	header := http.Header{}
	if user != "" {
		header.Set("End-User", user)
	}
	client := throughProxy(t, "127.1.9.2")
	client.Timeout = 20 * time.Second
	code, body, _, err := get(t.Context(), client, bookinfoPage, header)
	if err == nil {
		err = json.Unmarshal([]byte(body), &p)
	}
	if err != nil || code != http.StatusOK {
		return bookPage{}, fmt.Errorf("the product page answers %d, %v: %s", code, err, body)
	}
	return p, nil
}

// wantVersion waits until a user sees a version of the reviews that matches the pattern.
func (s *shop) wantVersion(t *testing.T, user, want string) {
	t.Helper()
	pattern := regexp.MustCompile("^" + want)
	eventually(t, 2*time.Minute, func() string {
		if got := s.page(t, user).version(); !pattern.MatchString(got) {
			return fmt.Sprintf("the user %q sees the reviews %s, want %s", user, got, want)
		}
		return ""
	})
}

// wantOnly waits until 50 requests in a row see one version of the reviews.
func (s *shop) wantOnly(t *testing.T, want string) {
	t.Helper()
	eventually(t, 2*time.Minute, func() string {
		for range 50 {
			if got := s.page(t, "").version(); got != want {
				return fmt.Sprintf("everything should go to %s, but %s answers", want, got)
			}
		}
		return ""
	})
}

// apply applies rules of the example with the tool.
func (s *shop) apply(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		cmd := exec.Command(filepath.Join(s.bin, "outrigger"), "apply", "--store", "fs://"+filepath.Join(s.dir, "config"), "-f", filepath.Join(s.dir, "rules", name+".yaml"))
		cmd.Env = append(os.Environ(), "TMPDIR="+s.tmp, "HOME="+s.home)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("apply %s: %v\n%s", name, err, out)
		}
	}
}

// edit replaces a text in a file of the copy.
func (s *shop) edit(name, old, new string) {
	s.t.Helper()
	path := filepath.Join(s.dir, name)
	b, err := os.ReadFile(path)
	if err != nil {
		s.t.Fatal(err)
	}
	text := strings.Replace(string(b), old, new, 1)
	if text == string(b) {
		s.t.Fatalf("%s does not hold %q", path, old)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		s.t.Fatal(err)
	}
}

// inboundRequests returns the number of requests to the Envoy of a workload.
func inboundRequests(t *testing.T, address string) int {
	t.Helper()
	text, err := fetch(t, "http://"+address+":15000/stats?filter=http.inbound_.*downstream_rq_total")
	if err != nil {
		t.Fatal(err)
	}
	_, number, _ := strings.Cut(text, ": ")
	n, err := strconv.Atoi(strings.TrimSpace(number))
	if err != nil {
		t.Fatalf("the statistics of %s: %q: %v", address, text, err)
	}
	return n
}
