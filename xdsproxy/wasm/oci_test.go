// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package wasm

import (
	"encoding/base64"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	imagename "github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	registryv1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// ociRegistry is a registry in this process.
type ociRegistry struct {
	host string
	user string // required user, with the password "hunter2"; empty means anonymous

	mu    sync.Mutex
	calls []string                                          // paths of requests for manifests and layers
	spoil func(w http.ResponseWriter, r *http.Request) bool // responds instead of the registry
}

const (
	basicAuth = "basic"
	tokenAuth = "token"
)

// newRegistry serves a registry over plain HTTP, or over TLS if secure is set, with basic or token
// authentication according to auth.
func newRegistry(t *testing.T, secure bool, auth string) *ociRegistry {
	t.Helper()
	r := &ociRegistry{}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/token" {
			r.token(w, req)
			return
		}
		if r.user != "" && !r.authorized(w, req, auth) {
			return
		}
		r.mu.Lock()
		if req.Method == http.MethodGet && req.URL.Path != "/v2/" {
			r.calls = append(r.calls, req.URL.Path)
		}
		spoil := r.spoil
		r.mu.Unlock()
		if spoil == nil || !spoil(w, req) {
			inner.ServeHTTP(w, req)
		}
	}))
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.Listener = listen(t, testHost)
	if secure {
		s.StartTLS()
	} else {
		s.Start()
	}
	t.Cleanup(s.Close)
	r.host = s.Listener.Addr().String()
	return r
}

func (r *ociRegistry) token(w http.ResponseWriter, req *http.Request) {
	if user, password, _ := req.BasicAuth(); user != r.user || password != "hunter2" {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	_, _ = fmt.Fprintf(w, `{"token":"of-%s"}`, r.user)
}

func (r *ociRegistry) authorized(w http.ResponseWriter, req *http.Request, auth string) bool {
	user, password, _ := req.BasicAuth()
	switch auth {
	case basicAuth:
		if user == r.user && password == "hunter2" {
			return true
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="r"`)
	default:
		if req.Header.Get("Authorization") == "Bearer of-"+r.user {
			return true
		}
		scheme := "http"
		if req.TLS != nil {
			scheme = "https"
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s://%s/token",service="s"`, scheme, r.host))
	}
	w.WriteHeader(http.StatusUnauthorized)
	return false
}

// push stores an image or an index under a name and returns the digest.
func (r *ociRegistry) push(t *testing.T, name string, what remote.Taggable) string {
	t.Helper()
	ref, err := imagename.ParseReference(r.host+"/"+name, imagename.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	c := newCache(t, Config{InsecureRegistries: []string{"*"}})
	options := []remote.Option{remote.WithTransport(c.net), remote.WithContext(t.Context()), remote.WithAuth(authn.Anonymous)}
	if r.user != "" {
		options[2] = remote.WithAuth(&authn.Basic{Username: r.user, Password: "hunter2"})
	}
	switch what := what.(type) {
	case registryv1.ImageIndex:
		err = remote.WriteIndex(ref, what, options...)
	case registryv1.Image:
		err = remote.Write(ref, what, options...)
	}
	if err != nil {
		t.Fatal(err)
	}
	d, err := what.(interface {
		Digest() (registryv1.Hash, error)
	}).Digest()
	if err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = nil
	return d.Hex
}

func (r *ociRegistry) requests() (manifests, layers int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, path := range r.calls {
		if strings.Contains(path, "/manifests/") {
			manifests++
		} else {
			layers++
		}
	}
	return manifests, layers
}

// newImage returns an image of layers, each with a media type and content.
func newImage(t *testing.T, manifest types.MediaType, layers ...registryv1.Layer) registryv1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, manifest)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func dockerImage(t *testing.T, module []byte) registryv1.Image {
	t.Helper()
	return newImage(t, types.DockerManifestSchema2,
		static.NewLayer(gzipped(t, tarred(t, "etc/x", "x")), types.DockerLayer),
		static.NewLayer(gzipped(t, tarred(t, "other", "x", "./plugin.wasm", string(module), "after", strings.Repeat("x", 5000))), types.DockerLayer))
}

func artifact(t *testing.T, module []byte) registryv1.Image {
	t.Helper()
	return newImage(t, types.OCIManifestSchema1,
		static.NewLayer(module, layerWasm), static.NewLayer([]byte("{}"), "application/vnd.module.wasm.config.v1+json"))
}

func TestOCILayouts(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	layer := func(files ...string) registryv1.Layer {
		return static.NewLayer(gzipped(t, tarred(t, files...)), types.OCILayer)
	}
	oci := func(layers ...registryv1.Layer) registryv1.Image {
		return newImage(t, types.OCIManifestSchema1, layers...)
	}
	cases := map[string]struct {
		image registryv1.Image
		err   string
	}{
		"docker":             {dockerImage(t, module), ""},
		"oci":                {oci(layer("x", "y"), layer("plugin.wasm", string(module))), ""},
		"oci, not gzipped":   {oci(static.NewLayer(tarred(t, "plugin.wasm", string(module)), types.OCIUncompressedLayer)), ""},
		"artifact":           {artifact(t, module), ""},
		"artifact, one":      {oci(static.NewLayer(module, layerWasmOCI)), ""},
		"no layers":          {oci(), "has no layers"},
		"no plugin":          {oci(layer("x.wasm", string(module))), "find plugin.wasm in the layer"},
		"no module":          {oci(layer("plugin.wasm", "<html>")), "not a WebAssembly module"},
		"no archive":         {oci(static.NewLayer(module, types.OCILayer)), "find plugin.wasm in the layer"},
		"artifact, no wasm":  {oci(static.NewLayer(module, "text/plain")), "has 0 layers of Wasm"},
		"artifact, two wasm": {oci(static.NewLayer(module, layerWasm), static.NewLayer(append(module, 0), layerWasm)), "has 2 layers of Wasm"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t, false, "")
			sum := r.push(t, "team/plugin:v1", tc.image)
			c := newCache(t, Config{})
			path, err := rewriteOne(t, c, pluginSpec{name: "p", url: "oci://" + r.host + "/team/plugin:v1"})
			if (tc.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				wantEmpty(t, c)
				return
			}
			if want := filepath.Join(c.cfg.Dir, digest("oci://"+r.host+"/team/plugin"), sum+".wasm"); path != want {
				t.Errorf("path %s, want %s", path, want)
			}
			if string(readFile(t, path)) != string(module) {
				t.Error("the file is not the module")
			}
		})
	}
}

func TestOCIIndex(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	wrong := dockerImage(t, testModule("wrong", "platform"))
	right := artifact(t, module)
	platform := func(os, arch string) registryv1.Descriptor {
		return registryv1.Descriptor{Platform: &registryv1.Platform{OS: os, Architecture: arch}}
	}
	index := mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: wrong, Descriptor: platform("linux", "s390x")},
		mutate.IndexAddendum{Add: wrong, Descriptor: platform("linux", "amd64")},
		mutate.IndexAddendum{Add: right, Descriptor: platform("wasip1", "wasm")})
	r := newRegistry(t, false, "")
	pinned := r.push(t, "x:v1", index)
	child, err := right.Digest()
	if err != nil {
		t.Fatal(err)
	}
	for name, spec := range map[string]pluginSpec{
		"tag": {url: ":v1"}, "digest of the index": {url: "@sha256:" + pinned}, "checksum is the index": {url: ":v1", sha256: pinned},
		"checksum is the image": {url: ":v1", sha256: child.Hex}, "both": {url: "@sha256:" + pinned, sha256: child.Hex},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCache(t, Config{})
			spec.name, spec.url = "p", "oci://"+r.host+"/x"+spec.url
			for range 2 {
				path, err := rewriteOne(t, c, spec)
				if err != nil {
					t.Fatal(err)
				}
				if string(readFile(t, path)) != string(module) || filepath.Base(path) != child.Hex+".wasm" {
					t.Errorf("the wrong module, %s", path)
				}
			}
		})
	}
	r.push(t, "none:v1", mutate.AppendManifests(empty.Index,
		mutate.IndexAddendum{Add: wrong, Descriptor: platform("linux", "s390x")}, mutate.IndexAddendum{Add: right, Descriptor: platform("plan9", "arm")}))
	if _, err := rewriteOne(t, newCache(t, Config{}), pluginSpec{name: "p", url: "oci://" + r.host + "/none:v1"}); err == nil ||
		!strings.Contains(err.Error(), "none of the 2 images") {
		t.Errorf("error %v", err)
	}
}

func TestOCIWrongBytes(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	other := testModule("x", "z") // a valid module of the same size
	r := newRegistry(t, false, "")
	good := r.push(t, "x:v1", artifact(t, module))
	r.spoil = func(w http.ResponseWriter, req *http.Request) bool {
		if req.Method != http.MethodGet || !strings.Contains(req.URL.Path, "/blobs/") {
			return false
		}
		_, _ = w.Write(other)
		return true
	}
	c := newCache(t, Config{})
	if _, err := rewriteOne(t, c, pluginSpec{name: "p", url: "oci://" + r.host + "/x:v1"}); err == nil || !strings.Contains(err.Error(), "sha256") {
		t.Errorf("other layer: error %v", err)
	}
	wantEmpty(t, c)
	for name, spec := range map[string]pluginSpec{
		"checksum": {url: ":v1", sha256: sum(module)}, "digest": {url: "@sha256:" + sum(module)},
	} {
		spec.name, spec.url = "p", "oci://"+r.host+"/x"+spec.url
		if _, err := rewriteOne(t, c, spec); err == nil {
			t.Errorf("%s was accepted, the image is %s", name, good)
		}
	}
	r.mu.Lock()
	r.spoil = func(w http.ResponseWriter, req *http.Request) bool {
		if req.URL.Path == "/v2/" {
			return false
		}
		endless(w, req)
		return true
	}
	r.mu.Unlock()
	if _, err := rewriteOne(t, c, pluginSpec{name: "p", url: "oci://" + r.host + "/y:v1"}); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("endless manifest: error %v", err)
	}
}

// TestOCIPull checks which requests are sent to a registry.
func TestOCIPull(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	for name, tc := range map[string]struct {
		tag, policy       string
		edited            bool
		manifests, layers int
	}{
		"tag":                 {":v1", "", true, 1, 1},
		"latest":              {":latest", "", false, 1, 1},
		"latest, edited":      {":latest", "UNSPECIFIED_POLICY", true, 2, 1},
		"no tag, edited":      {"", "", true, 2, 1},
		"always, edited":      {":v1", "Always", true, 2, 1},
		"always":              {":v1", "Always", false, 1, 1},
		"if not present":      {":latest", "IfNotPresent", true, 1, 1},
		"unknown is no error": {":v1", "Sometimes", true, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRegistry(t, false, "")
			r.push(t, "x"+tc.tag, artifact(t, module))
			c := newCache(t, Config{})
			for i := range 2 {
				env := map[string]string{hintVersion: "1", hintPullPolicy: tc.policy}
				if tc.edited && i == 1 {
					env[hintVersion] = "2"
				}
				if _, err := rewriteOne(t, c, pluginSpec{name: "p", url: "oci://" + r.host + "/x" + tc.tag, env: env}); err != nil {
					t.Fatal(err)
				}
			}
			if m, l := r.requests(); m != tc.manifests || l != tc.layers {
				t.Errorf("%d manifests and %d layers, want %d and %d", m, l, tc.manifests, tc.layers)
			}
		})
	}
}

// dockerConfig returns a docker config JSON with the password of the tests.
func dockerConfig(host, user string) string {
	return fmt.Sprintf(`{"auths":{%q:{"auth":%q}}}`, host, base64.StdEncoding.EncodeToString([]byte(user+":hunter2")))
}

func TestOCICredentials(t *testing.T) {
	t.Parallel()
	module := testModule("x", "y")
	for _, auth := range []string{basicAuth, tokenAuth} {
		r := newRegistry(t, true, auth)
		r.user = "me"
		r.push(t, "x:v1", artifact(t, module))
		plain := newRegistry(t, false, auth)
		plain.user = "me"
		plain.push(t, "x:v1", artifact(t, module))
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "config.json"), []byte(dockerConfig(r.host, "me")), 0o600); err != nil {
			t.Fatal(err)
		}
		cases := map[string]struct {
			registry, secret, dir, insecure string
			err                             string
		}{
			"secret":                   {r.host, dockerConfig(r.host, "me"), "", r.host, ""},
			"secret with a scheme":     {r.host, dockerConfig("https://"+r.host+"/v1/", "me"), "", r.host, ""},
			"of this machine":          {r.host, "", dir, r.host, ""},
			"secret wins":              {r.host, dockerConfig(r.host, "you"), dir, r.host, "401"},
			"of another host":          {r.host, dockerConfig("other:443", "me"), "", r.host, "401"},
			"none":                     {r.host, "", t.TempDir(), r.host, "401"},
			"not verified":             {r.host, dockerConfig(r.host, "me"), "", "", "certificate"},
			"no JSON":                  {r.host, "hunter2", "", r.host, "not a docker config JSON"},
			"plaintext":                {plain.host, dockerConfig(plain.host, "me"), "", "", "in plaintext"},
			"plaintext, as configured": {plain.host, dockerConfig(plain.host, "me"), "", plain.host, ""},
			"names a program":          {r.host, `{"credsStore":"outrigger-test-none"}`, "", r.host, "401"},
		}
		for name, tc := range cases {
			t.Run(auth+"/"+name, func(t *testing.T) {
				t.Parallel()
				spec := pluginSpec{name: "p", url: "oci://" + tc.registry + "/x:v1"}
				if tc.secret != "" {
					spec.env = map[string]string{hintPullSecret: tc.secret}
				}
				c := newCache(t, Config{DockerConfigDir: tc.dir, InsecureRegistries: []string{tc.insecure}, HTTPMaxAttempts: 1})
				path, err := rewriteOne(t, c, spec)
				if (tc.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v", err)
				}
				if err != nil && strings.Contains(err.Error(), "hunter2") {
					t.Errorf("the error contains a secret: %v", err)
				}
				if err == nil && string(readFile(t, path)) != string(module) {
					t.Error("the file is not the module")
				}
			})
		}
	}
}
