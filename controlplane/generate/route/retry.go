// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package route

import (
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	previoushostsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/host/previous_hosts/v3"
	previousprioritiesv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/retry/priority/previous_priorities/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshv1alpha1 "istio.io/api/mesh/v1alpha1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"

	"github.com/outrigger-mesh/outrigger/controlplane/generate/envoyconf"
)

// The default retry policy, which only repeats requests that are safe to repeat.
const (
	defaultRetries = 2
	defaultRetryOn = "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes"
	defaultRetried = 503
)

// retryPolicy converts the retry policy of a route. A route without one uses that of the mesh, or
// the default. Nil means no retries.
func retryPolicy(in *networkingv1alpha3.HTTPRetry, mesh *meshv1alpha1.MeshConfig) *routev3.RetryPolicy {
	if in == nil {
		in = mesh.GetDefaultHttpRetryPolicy()
	}
	out := &routev3.RetryPolicy{
		RetryOn:                       defaultRetryOn,
		NumRetries:                    wrapperspb.UInt32(defaultRetries),
		RetriableStatusCodes:          []uint32{defaultRetried},
		HostSelectionRetryMaxAttempts: 5,
	}
	if in != nil {
		if in.GetAttempts() <= 0 {
			return nil
		}
		out.NumRetries = wrapperspb.UInt32(uint32(in.GetAttempts()))
		if on := in.GetRetryOn(); on != "" {
			out.RetryOn, out.RetriableStatusCodes = retryOn(on)
		}
		if d, ok := envoyconf.Positive(in.GetPerTryTimeout()); ok {
			out.PerTryTimeout = d
		}
		if d, ok := envoyconf.Positive(in.GetBackoff()); ok {
			out.RetryBackOff = &routev3.RetryPolicy_RetryBackOff{BaseInterval: d}
		}
		if in.GetRetryRemoteLocalities().GetValue() {
			out.RetryPriority = &routev3.RetryPolicy_RetryPriority{
				Name: "envoy.retry_priorities.previous_priorities",
				ConfigType: &routev3.RetryPolicy_RetryPriority_TypedConfig{TypedConfig: envoyconf.Pack(
					&previousprioritiesv3.PreviousPrioritiesConfig{UpdateFrequency: 2},
				)},
			}
		}
	}
	if ignore := in.GetRetryIgnorePreviousHosts(); ignore == nil || ignore.GetValue() {
		out.RetryHostPredicate = []*routev3.RetryPolicy_RetryHostPredicate{{
			Name: "envoy.retry_host_predicates.previous_hosts",
			ConfigType: &routev3.RetryPolicy_RetryHostPredicate_TypedConfig{TypedConfig: envoyconf.Pack(
				&previoushostsv3.PreviousHostsPredicate{},
			)},
		}}
	}
	return out
}

// retryOn splits a list into retry conditions and status codes.
func retryOn(list string) (conditions string, codes []uint32) {
	const byCode = "retriable-status-codes"
	var words []string
	for word := range strings.SplitSeq(list, ",") {
		word = strings.TrimSpace(word)
		if code, err := strconv.ParseUint(word, 10, 16); err == nil {
			codes = append(codes, uint32(code))
		} else if word != "" {
			words = append(words, word)
		}
	}
	if len(codes) > 0 && !slices.Contains(words, byCode) {
		words = append(words, byCode)
	}
	return strings.Join(words, ","), codes
}
