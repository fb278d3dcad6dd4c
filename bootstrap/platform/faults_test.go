// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// at returns a configuration in which all services have the same address.
func at(t *testing.T, platform, url string) Config {
	t.Helper()
	return Config{Platform: platform, Endpoints: Endpoints{AWS: url, Azure: url, GCP: url}, DMIDir: t.TempDir(), Timeout: 10 * time.Second}
}

// TestDetectBadAnswers checks that the agent starts whatever the response: there is a warning, and
// the result contains no invalid data.
func TestDetectBadAnswers(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		handler http.HandlerFunc
		warning map[string]string
	}{
		"a page of another server": {
			handler: func(w http.ResponseWriter, _ *http.Request) { write(w, "<html>\n<body>Log in</body>\n</html>\n") },
			warning: map[string]string{AWS: "is not a line of text", Azure: "invalid character '<'", GCP: "it is another server"},
		},
		"words that are no names": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Metadata-Flavor", "Google")
				write(w, "not found / sorry")
			},
			warning: map[string]string{AWS: "not a name of AWS", Azure: "invalid character", GCP: "which is not a zone"},
		},
		"bytes that are no text": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Metadata-Flavor", "Google")
				write(w, "\xff\xfe\x00")
			},
			warning: map[string]string{AWS: "is not a line of text", Azure: "invalid character", GCP: "is not a line of text"},
		},
		"more than anybody needs": {
			handler: func(w http.ResponseWriter, _ *http.Request) {
				w.Header().Set("Metadata-Flavor", "Google")
				for range 1 << 10 {
					write(w, strings.Repeat("a", 1<<10))
				}
			},
			warning: map[string]string{AWS: "has more than 1024 bytes", Azure: "has more than 262144 bytes", GCP: "has more than 1024 bytes"},
		},
		"a head without end": {
			handler: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X", strings.Repeat("a", 1<<20)) },
			warning: map[string]string{AWS: "exceeded", Azure: "exceeded", GCP: "exceeded"},
		},
		"nothing at all": {
			handler: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("Metadata-Flavor", "Google") },
			warning: map[string]string{AWS: "not a name of AWS", Azure: "unexpected end of JSON", GCP: "which is not a zone"},
		},
		"refusals": {
			handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusForbidden) },
			warning: map[string]string{AWS: "returned 403 Forbidden", Azure: "returned 403 Forbidden", GCP: "returned 403 Forbidden"},
		},
		"a connection that breaks": {
			handler: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
			warning: map[string]string{AWS: "EOF", Azure: "EOF", GCP: "EOF"},
		},
	} {
		for platform, warning := range tc.warning {
			t.Run(name+", "+platform, func(t *testing.T) {
				t.Parallel()
				cfg := at(t, platform, serve(t, tc.handler).url)
				log, text := logged()
				cfg.Logger = log
				got, err := Detect(t.Context(), cfg)
				if err != nil {
					t.Fatal(err)
				}
				if got.Name != platform || got.Locality != (Locality{}) {
					t.Errorf("Detect() = %+v", got)
				}
				for key, value := range got.Metadata {
					if clean, ok := printable(value); !ok || clean != value {
						t.Errorf("%s is %q", key, value)
					}
				}
				if n := strings.Count(text.String(), "\n"); n != 1 || !strings.Contains(text.String(), warning) || !strings.Contains(text.String(), "CLOUD_PLATFORM=none") {
					t.Errorf("the log has %d lines, want one with %q: %s", n, warning, text)
				}
			})
		}
	}
}

// TestDetectAzureInPart checks that a document with one invalid field still provides the others.
func TestDetectAzureInPart(t *testing.T) {
	t.Parallel()
	cfg := at(t, Azure, serve(t, azure(`{"name":7,"location":"westus","zone":"1/2","tagsList":[{"name":"A","value":"x\ny"},{"name":"B","value":"b"}]}`)).url)
	log, text := logged()
	cfg.Logger = log
	got, err := Detect(t.Context(), cfg)
	want := Result{Name: Azure, Locality: Locality{Region: "westus"}, Metadata: map[string]string{"azure_location": "westus", "azure_B": "b"}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if !strings.Contains(text.String(), "cannot unmarshal number") || !strings.Contains(text.String(), `\"A\" is ignored`) {
		t.Error(text)
	}
}

// TestDetectHanging checks that a service that does not respond costs only the timeout, and that
// other responses are still used.
func TestDetectHanging(t *testing.T) {
	t.Parallel()
	const timeout = 300 * time.Millisecond
	hang := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	tokenless := func(w http.ResponseWriter, r *http.Request) { // as seen from a container: the response is lost
		if r.Method == http.MethodPut {
			hang(w, r)
			return
		}
		aws("", awsValues())(w, r)
	}
	strict := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPut {
			hang(w, r)
			return
		}
		aws("needed", awsValues())(w, r)
	}
	partly := func(w http.ResponseWriter, r *http.Request) {
		if strings.Contains(r.URL.Path, "attributes") {
			hang(w, r)
			return
		}
		google(googleValues())(w, r)
	}
	halfway := func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Metadata-Flavor", "Google")
		write(w, `{"loc`)
		_ = http.NewResponseController(w).Flush() // the client may be gone
		hang(w, r)
	}
	for name, tc := range map[string]struct {
		platform string
		handler  http.HandlerFunc
		region   string
		warning  string
	}{
		"aws":                           {AWS, hang, "", "context deadline exceeded (and 2 more requests)"},
		"azure":                         {Azure, hang, "", "context deadline exceeded"},
		"gcp":                           {GCP, hang, "", "context deadline exceeded"},
		"azure, amid the answer":        {Azure, halfway, "", "read the response of /metadata/instance"},
		"gcp, amid the answer":          {GCP, halfway, "", "context deadline exceeded"},
		"aws, the session only":         {AWS, tokenless, "us-west-2", ""},
		"aws, the session that it asks": {AWS, strict, "", "need a hop limit of 2 (HttpPutResponseHopLimit)"},
		"gcp, the attributes only":      {GCP, partly, "us-central1", "context deadline exceeded (and 3 more requests)"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := at(t, tc.platform, serve(t, tc.handler).url)
			log, text := logged()
			cfg.Logger, cfg.Timeout = log, timeout
			start := time.Now()
			got, err := Detect(t.Context(), cfg)
			if took := time.Since(start); took > timeout+time.Minute {
				t.Errorf("it took %s", took)
			}
			if err != nil || got.Locality.Region != tc.region {
				t.Errorf("Detect() = %+v, %v", got, err)
			}
			if warned := strings.Contains(text.String(), "WARN"); warned != (tc.warning != "") || !strings.Contains(text.String(), tc.warning) {
				t.Errorf("the log: %s", text)
			}
		})
	}
}

// TestDetectNobodyThere checks that a refused connection is detected at once, long before the
// timeout.
func TestDetectNobodyThere(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.77.41.2:0")
	if err != nil {
		t.Fatal(err)
	}
	address := listener.Addr().String()
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
	for _, platform := range []string{AWS, Azure, GCP} {
		cfg := at(t, platform, "http://"+address)
		log, text := logged()
		cfg.Logger = log
		start := time.Now()
		got, err := Detect(t.Context(), cfg)
		if err != nil || got.Metadata != nil || !strings.Contains(text.String(), "connection refused") || time.Since(start) > 60*time.Second {
			t.Errorf("Detect() = %+v, %v after %s, log %s", got, err, time.Since(start), text)
		}
	}
}

// TestDetectCancelled checks that Detect returns an error only if ctx is done.
func TestDetectCancelled(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 9)
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) {
		asked <- struct{}{}
		<-r.Context().Done()
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() { <-asked; cancel() }()
	log, text := logged()
	cfg := at(t, GCP, c.url)
	cfg.Timeout, cfg.Logger = time.Hour, log
	if got, err := Detect(ctx, cfg); !errors.Is(err, context.Canceled) || got.Metadata != nil || text.Len() != 0 {
		t.Errorf("Detect() = %+v, %v, log %s", got, err, text)
	}
}

// TestDetectFollowsNobody checks that a redirect is treated like any other status than 200.
func TestDetectFollowsNobody(t *testing.T) {
	t.Parallel()
	elsewhere := serve(t, aws("", awsValues()))
	for _, platform := range []string{AWS, Azure, GCP} {
		c := serve(t, func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.url+r.URL.Path, http.StatusFound)
		})
		log, text := logged()
		cfg := at(t, platform, c.url)
		cfg.Logger = log
		got, err := Detect(t.Context(), cfg)
		if err != nil || got.Metadata != nil || !strings.Contains(text.String(), "returned 302 Found") {
			t.Errorf("Detect() = %+v, %v, log %s", got, err, text)
		}
	}
	if asked := elsewhere.requests(); len(asked) != 0 {
		t.Errorf("it was asked: %q", asked)
	}
}

// TestDetectWithoutProxy checks that the proxy settings of the environment are ignored. Go reads
// them only once per process, so the test runs in a separate process. The host is not a loopback
// address, because those are never proxied.
func TestDetectWithoutProxy(t *testing.T) {
	t.Parallel()
	const variable = "http_proxy"
	if os.Getenv("OUTRIGGER_TEST_PLATFORM") == "proxy" {
		req := &http.Request{URL: &url.URL{Scheme: "http", Host: "metadata.invalid"}}
		if proxy, err := http.ProxyFromEnvironment(req); err != nil || proxy == nil {
			t.Fatalf("the environment has no proxy: %v, %v", proxy, err)
		}
		got, err := Detect(t.Context(), Config{Env: Env{GCEMetadataHost: "metadata.invalid"}, DMIDir: t.TempDir(), Timeout: 5 * time.Second})
		if err != nil || got.Metadata != nil {
			t.Errorf("Detect() = %+v, %v", got, err)
		}
		return
	}
	proxy := serve(t, google(googleValues()))
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^TestDetectWithoutProxy$")
	cmd.Env = []string{"OUTRIGGER_TEST_PLATFORM=proxy", variable + "=" + proxy.url, "TMPDIR=" + t.TempDir()}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if asked := proxy.requests(); len(asked) != 0 {
		t.Errorf("the proxy was asked: %q", asked)
	}
}

// TestDetectInParallel checks that all requests are sent concurrently: the service responds to none
// before it has received all of them.
func TestDetectInParallel(t *testing.T) {
	t.Parallel()
	for platform, want := range map[string]int{AWS: 3, GCP: 9} {
		t.Run(platform, func(t *testing.T) {
			t.Parallel()
			arrived, all := make(chan struct{}, 16), make(chan struct{})
			go func() {
				defer close(all)
				for range want {
					select {
					case <-arrived:
					case <-t.Context().Done():
						return
					}
				}
			}()
			answer := map[string]http.HandlerFunc{AWS: aws("", awsValues()), GCP: google(googleValues())}[platform]
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				if r.Method == http.MethodGet {
					arrived <- struct{}{}
					select {
					case <-all:
					case <-r.Context().Done():
						return
					}
				}
				answer(w, r)
			})
			if got, err := Detect(t.Context(), at(t, platform, c.url)); err != nil || got.Locality.Zone == "" {
				t.Errorf("Detect() = %+v, %v", got, err)
			}
		})
	}
}
