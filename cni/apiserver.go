// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package cni

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/outrigger-mesh/outrigger/internal/clip"
)

// apiServer is a connection to the API server.
type apiServer struct {
	url    string
	token  string
	client *http.Client
}

// maxAnswer bounds an answer of the API server: 250 pods of the largest size are a part of it.
const maxAnswer = 512 << 20

func newAPIServer(server string, roots []byte, token string) (*apiServer, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(roots) {
		return nil, errors.New("the certificate authority of the API server contains no certificate in PEM")
	}
	at, err := url.Parse(server)
	if err != nil || at.Scheme != "https" || at.Host == "" {
		return nil, fmt.Errorf("the URL of the API server is %q: it must be https://host:port", server)
	}
	return &apiServer{url: strings.TrimSuffix(server, "/"), token: token, client: &http.Client{
		Transport: &http.Transport{
			TLSClientConfig:     &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout: requestTimeout, ForceAttemptHTTP2: true,
		},
		// A token goes to the API server only.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func (a *apiServer) close() { a.client.CloseIdleConnections() }

// kubeconfig is a kubeconfig with one cluster and one user.
type kubeconfig struct {
	APIVersion     string         `json:"apiVersion"`
	Kind           string         `json:"kind"`
	Clusters       []namedCluster `json:"clusters"`
	Users          []namedUser    `json:"users"`
	Contexts       []namedContext `json:"contexts"`
	CurrentContext string         `json:"current-context"`
}

type namedCluster struct {
	Name    string `json:"name"`
	Cluster struct {
		Server string `json:"server"`
		CAData string `json:"certificate-authority-data"`
	} `json:"cluster"`
}

type namedUser struct {
	Name string `json:"name"`
	User struct {
		Token string `json:"token"`
	} `json:"user"`
}

type namedContext struct {
	Name    string `json:"name"`
	Context struct {
		Cluster string `json:"cluster"`
		User    string `json:"user"`
	} `json:"context"`
}

// newKubeconfig returns a kubeconfig in JSON, which is YAML, too.
func newKubeconfig(server string, roots []byte, token string) ([]byte, error) {
	k := kubeconfig{APIVersion: "v1", Kind: "Config", CurrentContext: PluginName}
	k.Clusters, k.Users, k.Contexts = []namedCluster{{Name: PluginName}}, []namedUser{{Name: PluginName}}, []namedContext{{Name: PluginName}}
	k.Clusters[0].Cluster.Server, k.Clusters[0].Cluster.CAData = server, base64.StdEncoding.EncodeToString(roots)
	k.Users[0].User.Token = token
	k.Contexts[0].Context.Cluster, k.Contexts[0].Context.User = PluginName, PluginName
	return json.MarshalIndent(k, "", "  ")
}

// fromKubeconfig reads a file of newKubeconfig. Errors do not quote it.
func fromKubeconfig(path string) (*apiServer, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	var k kubeconfig
	if err := json.Unmarshal(text, &k); err != nil || len(k.Clusters) != 1 || len(k.Users) != 1 {
		return nil, fmt.Errorf("%s is not a kubeconfig of %s: delete it, so that %s writes it again", path, PluginName, PluginName)
	}
	roots, err := base64.StdEncoding.DecodeString(k.Clusters[0].Cluster.CAData)
	if err != nil {
		return nil, fmt.Errorf("%s: certificate-authority-data: %w", path, err)
	}
	a, err := newAPIServer(k.Clusters[0].Cluster.Server, roots, k.Users[0].User.Token)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return a, nil
}

// request is a request to the API server. The zero method is GET; out is nil or what to decode the
// answer to.
type request struct {
	method, path string
	query        url.Values
	contentType  string
	body, out    any
}

// statusError is the answer of the API server to a request that it refuses.
type statusError struct {
	Code    int
	message string
}

func (e *statusError) Error() string { return e.message }

// hasCode reports whether an error is an answer with one of some codes.
func hasCode(err error, codes ...int) bool {
	var status *statusError
	return errors.As(err, &status) && slices.Contains(codes, status.Code)
}

// do sends a request and decodes the answer.
func (a *apiServer) do(ctx context.Context, r request) error {
	body, err := a.open(ctx, r)
	if err != nil {
		return err
	}
	defer func() { _ = body.Close() }() // it was read
	if r.out == nil {
		return nil
	}
	if err := json.NewDecoder(io.LimitReader(body, maxAnswer)).Decode(r.out); err != nil {
		return fmt.Errorf("the response of the API server to %s: %w", r.path, err)
	}
	return nil
}

// open sends a request and returns the body of the answer.
func (a *apiServer) open(ctx context.Context, r request) (io.ReadCloser, error) {
	var body io.Reader = http.NoBody
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(text)
	}
	target := a.url + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	q, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, err
	}
	q.Header.Set("Authorization", "Bearer "+a.token)
	q.Header.Set("Accept", "application/json")
	q.Header.Set("User-Agent", PluginName)
	if r.body != nil {
		q.Header.Set("Content-Type", "application/json")
		if r.contentType != "" {
			q.Header.Set("Content-Type", r.contentType)
		}
	}
	answer, err := a.client.Do(q)
	if err != nil {
		return nil, fmt.Errorf("calling the API server: %w", err)
	}
	if answer.StatusCode < 300 {
		return answer.Body, nil
	}
	defer func() { _ = answer.Body.Close() }() // only its text matters
	var status struct {
		Message string `json:"message"`
	}
	const maxStatus, maxMessage = 64 << 10, 1 << 10
	if err := json.NewDecoder(io.LimitReader(answer.Body, maxStatus)).Decode(&status); err != nil || status.Message == "" {
		status.Message = r.path
	}
	return nil, &statusError{answer.StatusCode, fmt.Sprintf("the API server returned %s: %s", answer.Status, clip.Text(status.Message, maxMessage))}
}

func podPath(namespace, name string) string {
	return "/api/v1/namespaces/" + url.PathEscape(namespace) + "/pods/" + url.PathEscape(name)
}

// Cluster says how a container reaches the API server, as Kubernetes sets it up.
type Cluster struct {
	URL       string // such as https://10.96.0.1:443
	TokenFile string // of the service account
	RootsFile string // certificates of the API server's authority
}

// connect reads token and roots, which the kubelet renews.
func (c Cluster) connect() (*apiServer, error) {
	token, err := os.ReadFile(c.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("token of the service account: %w", err)
	}
	roots, err := os.ReadFile(c.RootsFile)
	if err != nil {
		return nil, fmt.Errorf("certificate authority of the API server: %w", err)
	}
	return newAPIServer(c.URL, roots, strings.TrimSpace(string(token)))
}

// pluginToken requests a token for a service account of a namespace. It returns the time at which
// the token should be renewed. It is not bound to a pod, so that it remains valid while the pod of
// the caller is replaced.
func (a *apiServer) pluginToken(ctx context.Context, namespace, account string) (token string, renew time.Time, err error) {
	type tokenRequest struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
		Spec       struct {
			ExpirationSeconds int64 `json:"expirationSeconds"`
		} `json:"spec"`
		Status struct {
			Token               string    `json:"token"`
			ExpirationTimestamp time.Time `json:"expirationTimestamp"`
		} `json:"status,omitzero"`
	}
	r := tokenRequest{APIVersion: "authentication.k8s.io/v1", Kind: "TokenRequest"}
	r.Spec.ExpirationSeconds = int64(tokenLifetime / time.Second)
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	path := "/api/v1/namespaces/" + url.PathEscape(namespace) + "/serviceaccounts/" + url.PathEscape(account) + "/token"
	var answer tokenRequest
	if err := a.do(ctx, request{method: http.MethodPost, path: path, body: r, out: &answer}); err != nil {
		return "", time.Time{}, fmt.Errorf("token for service account %s/%s: %w", namespace, account, err)
	}
	if answer.Status.Token == "" {
		return "", time.Time{}, fmt.Errorf("token for service account %s/%s: the response contains none", namespace, account)
	}
	life := time.Until(answer.Status.ExpirationTimestamp)
	return answer.Status.Token, time.Now().Add(max(life/4, time.Minute)), nil
}

// tokenLifetime is how long pods start while the daemon is away; the API server may shorten it.
const tokenLifetime = 24 * time.Hour
