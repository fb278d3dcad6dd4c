// SPDX-License-Identifier: Apache-2.0
// Copyright The Outrigger Authors

package platform

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strings"
)

const (
	awsIPv6 = "http://[fd00:ec2::254]"
	// awsTokenTTL is the lifetime of a session token, in seconds. It covers three requests.
	awsTokenTTL = "60"
)

// awsRegion matches the region at the beginning of a zone, including local and wavelength zones:
// us-east-1a, us-gov-west-1b, us-west-2-lax-1a, us-east-1-wl1-bos-wlz-1.
var awsRegion = regexp.MustCompile(`^[a-z]+(?:-[a-z]+)+-[0-9]+`)

// askAWS queries the instance metadata service, with a session token if possible.
func (c Config) askAWS(ctx context.Context) (Result, error) {
	fallback := linkLocal
	if c.IPv6 {
		fallback = awsIPv6
	}
	s := newService(c.Endpoints.AWS, fallback)
	token, tokenErr := awsToken(ctx, c, s)
	if tokenErr == nil {
		s.header = http.Header{"X-Aws-Ec2-Metadata-Token": {token}}
	}
	const data = "/latest/meta-data/"
	answers := s.values(ctx, data+"placement/region", data+"placement/availability-zone", data+"instance-id")
	for i := range answers {
		if a := &answers[i]; a.err == nil && !validLocality(a.value) {
			*a = answer{err: fmt.Errorf("a response is %.64q, which is not a name of AWS", a.value)}
		}
	}
	region, zone, instance := answers[0].value, answers[1].value, answers[2].value
	err := joined(answers, nil)
	if region == "" {
		region = awsRegion.FindString(zone)
		if region != "" && refused(answers[0].err, http.StatusNotFound) { // older services, before 2020
			err = joined(answers[1:], nil)
		}
	}
	if refused(err, http.StatusUnauthorized) && tokenErr != nil {
		err = fmt.Errorf("%w: the service requires a session token, and returned none: %w; in a container the instance's metadata options need a hop limit of 2 (HttpPutResponseHopLimit)", err, tokenErr)
	}
	return Result{
		Name: AWS, Locality: Locality{Region: region, Zone: zone},
		Metadata: metadata("aws_region", region, "aws_availability_zone", zone, "aws_instance_id", instance),
	}, err
}

// awsToken requests a session token. From a container, the response may never arrive, so half of
// the time is reserved for requests without a token.
func awsToken(ctx context.Context, c Config, s service) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.timeout()/2)
	defer cancel()
	s.header = http.Header{"X-Aws-Ec2-Metadata-Token-Ttl-Seconds": {awsTokenTTL}}
	token, err := s.value(ctx, http.MethodPut, "/latest/api/token")
	if err == nil && (token == "" || strings.IndexFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0) {
		err = errors.New("the response of /latest/api/token is not a token") // the error must not contain the token
	}
	return token, err
}
