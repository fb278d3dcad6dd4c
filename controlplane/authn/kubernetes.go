// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package authn

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4/jwt"
	"golang.org/x/sync/singleflight"
	"google.golang.org/grpc/metadata"
	"k8s.io/apimachinery/pkg/util/cache"

	"github.com/outrigger-mesh/outrigger/certs"
	"github.com/outrigger-mesh/outrigger/internal/clip"
)

const (
	defaultPositiveTTL   = 10 * time.Second
	defaultNegativeTTL   = 10 * time.Second
	defaultReviewTimeout = 5 * time.Second
	defaultCacheSize     = 20_000
	// maxReviews is the maximum number of concurrent reviews; others wait.
	maxReviews = 64
	// clusterKey is the metadata key in which an agent names its cluster.
	clusterKey = "clusterid"
	// maxText is the maximum number of bytes of a peer's text that an error quotes.
	maxText = 200
)

// Reviewer asks a Kubernetes API server to review a token. An error that wraps ErrUnauthenticated
// means that the token is invalid; any other error means that the server is unavailable.
type Reviewer interface {
	// Review checks whether the token is valid for at least one of the audiences; no audiences
	// means those of the API server.
	Review(ctx context.Context, token string, audiences []string) (Review, error)
}

// Review is the result of the review of a valid token.
type Review struct {
	Namespace      string
	ServiceAccount string
	Pod            Pod
}

// KubernetesConfig configures the review of tokens.
type KubernetesConfig struct {
	TrustDomain string   // of the resulting identities
	Audiences   []string // at least one must be in the claim aud; empty means istio-ca
	// AllowUnbound also accepts tokens without an audience, which old versions of Kubernetes
	// created for service accounts.
	AllowUnbound bool
	// Reviewer returns the API server of the cluster that a call names in the metadata "clusterid",
	// or nil if the cluster is unknown. The name is empty if the call names none; otherwise it is
	// untrusted input.
	Reviewer    func(cluster string) Reviewer
	PositiveTTL time.Duration // how long a valid token is not reviewed again; zero means 10 s
	NegativeTTL time.Duration // the same for an invalid token; zero means 10 s
	Timeout     time.Duration // of a review; zero means 5 s
	CacheSize   int           // maximum number of cached results of each kind; zero means 20,000
	Logger      *slog.Logger  // nil means slog.Default()
	Metrics     *Metrics      // nil means none
}

// Kubernetes authenticates callers by a token that an API server reviews.
type Kubernetes struct {
	cfg     KubernetesConfig
	good    *cache.LRUExpireCache // Reviews of valid tokens, by request.key
	bad     *cache.LRUExpireCache // strings, why tokens are invalid
	flights singleflight.Group
	slots   chan struct{}
}

// NewKubernetes returns an Authenticator that uses token reviews. It returns an error if the
// configuration is invalid.
func NewKubernetes(cfg KubernetesConfig) (*Kubernetes, error) {
	if cfg.Reviewer == nil {
		return nil, errors.New("authentication by review of tokens: no API server is configured")
	}
	if err := certs.ValidateTrustDomain(cfg.TrustDomain); err != nil {
		return nil, fmt.Errorf("authentication by review of tokens: %w", err)
	}
	if slices.Contains(cfg.Audiences, "") {
		return nil, errors.New("authentication by review of tokens: an audience is empty; leave it out")
	}
	if len(cfg.Audiences) == 0 {
		cfg.Audiences = []string{"istio-ca"}
	}
	for _, d := range []struct {
		value *time.Duration
		zero  time.Duration
	}{
		{&cfg.PositiveTTL, defaultPositiveTTL},
		{&cfg.NegativeTTL, defaultNegativeTTL},
		{&cfg.Timeout, defaultReviewTimeout},
	} {
		if *d.value <= 0 {
			*d.value = d.zero
		}
	}
	if cfg.CacheSize <= 0 {
		cfg.CacheSize = defaultCacheSize
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &Kubernetes{
		cfg:   cfg,
		good:  cache.NewLRUExpireCache(cfg.CacheSize),
		bad:   cache.NewLRUExpireCache(cfg.CacheSize),
		slots: make(chan struct{}, maxReviews),
	}, nil
}

// Authenticate implements Authenticator.
func (k *Kubernetes) Authenticate(ctx context.Context) (*Caller, error) {
	token, err := bearer(ctx)
	if err != nil {
		return nil, err
	}
	audiences, err := k.precheck(token, time.Now())
	if err != nil {
		return nil, err
	}
	cluster, err := clusterOf(ctx)
	if err != nil {
		return nil, err
	}
	reviewer := k.cfg.Reviewer(cluster)
	if reviewer == nil {
		return nil, refuse("kubernetes: no API server is known for cluster %q", clip.Cut(cluster, maxText))
	}
	r, err := k.review(ctx, reviewer, request{cluster, token, audiences})
	if err != nil {
		return nil, err
	}
	id := certs.ID{TrustDomain: k.cfg.TrustDomain, Namespace: r.Namespace, ServiceAccount: r.ServiceAccount}
	if err := id.Validate(); err != nil {
		return nil, refuse("kubernetes: %s", err.Error())
	}
	return &Caller{ID: id, Method: MethodKubernetes, Cluster: cluster, Pod: r.Pod}, nil
}

// clusterOf returns the cluster that the call names, or "" if it names none.
func clusterOf(ctx context.Context) (string, error) {
	values := metadata.ValueFromIncomingContext(ctx, clusterKey)
	switch {
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", refuse("kubernetes: the call names several clusters")
	}
	return values[0], nil
}

// precheck rejects tokens that no review can accept, and returns the audiences for the review. It
// trusts nothing in the token.
func (k *Kubernetes) precheck(token string, now time.Time) (audiences []string, err error) {
	parsed, err := jwt.ParseSigned(token, knownAlgorithms())
	if err != nil {
		return nil, refuse("kubernetes: the token is not a signed JWT")
	}
	var c jwt.Claims
	if parsed.UnsafeClaimsWithoutVerification(&c) != nil {
		return nil, refuse("kubernetes: the claims of the token cannot be read")
	}
	if _, _, ok := splitSubject(c.Subject); !ok {
		return nil, refuse("kubernetes: the subject is not of the form %s<namespace>:<service account>", subjectPrefix)
	}
	if c.Expiry != nil && now.After(c.Expiry.Time().Add(defaultLeeway)) {
		return nil, refuse("kubernetes: the token expired at %s", c.Expiry.Time().UTC().Format(time.RFC3339))
	}
	if len(c.Audience) == 0 && k.cfg.AllowUnbound {
		return nil, nil
	}
	if !slices.ContainsFunc(k.cfg.Audiences, c.Audience.Contains) {
		return nil, refuse("kubernetes: the token is for an audience other than %s", strings.Join(k.cfg.Audiences, ", "))
	}
	return k.cfg.Audiences, nil
}

// request is a request for a token review.
type request struct {
	cluster   string
	token     string
	audiences []string
}

// key returns the cache key of the request, so that the caches do not store tokens. The audiences
// depend on the token.
func (r request) key() [sha256.Size]byte {
	return sha256.Sum256([]byte(fmt.Sprintf("%d:%s%s", len(r.cluster), r.cluster, r.token)))
}

// review returns the cached result for a token, or reviews it. Concurrent calls with the same token
// share one review, which continues if one of them ends.
func (k *Kubernetes) review(ctx context.Context, reviewer Reviewer, req request) (Review, error) {
	key := req.key()
	if r, ok := k.good.Get(key); ok {
		k.cfg.Metrics.reviewed("cached")
		return r.(Review), nil
	}
	if why, ok := k.bad.Get(key); ok {
		k.cfg.Metrics.reviewed("cached")
		return Review{}, refuse("%s", why)
	}
	result := k.flights.DoChan(string(key[:]), func() (any, error) {
		detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), k.cfg.Timeout)
		defer cancel()
		return k.ask(detached, reviewer, req, key)
	})
	// Cases: the review is complete; the call ended.
	select {
	case r := <-result:
		if r.Err != nil {
			return Review{}, r.Err
		}
		return r.Val.(Review), nil
	case <-ctx.Done():
		return Review{}, cannotTell("kubernetes: the call ended before its token was reviewed")
	}
}

// ask requests a review and caches the result.
func (k *Kubernetes) ask(ctx context.Context, reviewer Reviewer, req request, key [sha256.Size]byte) (Review, error) {
	// Cases: a slot is free; the timeout expired.
	select {
	case k.slots <- struct{}{}:
	case <-ctx.Done():
		k.cfg.Metrics.reviewed("error")
		return Review{}, cannotTell("kubernetes: too many tokens are being reviewed")
	}
	defer func() { <-k.slots }()
	r, err := reviewer.Review(ctx, req.token, req.audiences)
	switch {
	case err == nil:
		k.cfg.Metrics.reviewed("ok")
		k.good.Add(key, r, k.cfg.PositiveTTL)
		return r, nil
	case errors.Is(err, ErrUnauthenticated):
		k.cfg.Metrics.reviewed("refused")
		why := clip.Text(hide("kubernetes: "+reason(err), req.token), maxText)
		k.bad.Add(key, why, k.cfg.NegativeTTL)
		return Review{}, refuse("%s", why)
	default:
		k.cfg.Metrics.reviewed("error")
		k.cfg.Logger.Warn("a token cannot be reviewed", "source", clip.Text(req.cluster, maxText), "err", clip.Text(hide(err.Error(), req.token), maxText))
		return Review{}, cannotTell("kubernetes: the API server could not review the token")
	}
}

// hide removes the parts of a token from a text, because an API server may quote the token.
func hide(text, token string) string {
	for _, part := range append([]string{token}, strings.Split(token, ".")...) {
		if part != "" {
			text = strings.ReplaceAll(text, part, "[token]")
		}
	}
	return text
}

// Refuse returns an error for a token that an API server rejects. It wraps ErrUnauthenticated; the
// reason is sent to the caller.
func Refuse(reason string) error { return refuse("%s", reason) }
