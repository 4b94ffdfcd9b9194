// Package secretref lets a setting be given as a reference to where AWS keeps its
// value, so that no secret stands in a unit file or an environment:
//
//	HOLDFAST_SEAL_KEY_REF=secretsmanager:holdfast/api#seal_key
//	HOLDFAST_REDIS_PASSWORD_REF=ssm:/holdfast/redis/api
//
// A secret of Secrets Manager is named by name or ARN, and is the whole text or one key
// of a JSON object; a parameter of Parameter Store is named by name or ARN, encrypted
// or not. References are resolved once, at the start: a secret that was changed is
// seen by the next start.
//
// It fails closed: what cannot be resolved is an error, and the process does not start.
// No value gets into an error. Its deadline runs on the wall clock.
package secretref

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/secretsmanager"
	"github.com/aws/aws-sdk-go-v2/service/ssm"
)

// Suffix after a variable's name makes the variable that holds the reference.
const Suffix = "_REF"

// Timeout bounds Resolve.
const Timeout = 15 * time.Second

// SecretsManager is what is needed of its client. Safe for concurrent use.
type SecretsManager interface {
	GetSecretValue(context.Context, *secretsmanager.GetSecretValueInput, ...func(*secretsmanager.Options)) (*secretsmanager.GetSecretValueOutput, error)
}

// ParameterStore is what is needed of its client. Safe for concurrent use.
type ParameterStore interface {
	GetParameter(context.Context, *ssm.GetParameterInput, ...func(*ssm.Options)) (*ssm.GetParameterOutput, error)
}

// Clients are asked for the values.
type Clients struct {
	SecretsManager SecretsManager
	ParameterStore ParameterStore
}

var (
	_ SecretsManager = (*secretsmanager.Client)(nil)
	_ ParameterStore = (*ssm.Client)(nil)
)

// Resolve returns a getenv that answers for each of the named variables the value that
// its _REF variable refers to, and for everything else what getenv answers. names are
// the variables that a process reads, whole: it asks for no secret of another's.
// connect is called once, and only if there is a reference. A variable that is set as a
// value or as a _FILE as well is an error; the error joins everything that is wrong.
// Safe to repeat.
func Resolve(ctx context.Context, getenv func(string) string, names []string, connect func(context.Context) (Clients, error)) (func(string) string, error) {
	ctx, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	refs, wrong := map[string]reference{}, map[string]error{}
	wanted := map[source]*answer{} // a secret with many keys is asked for once
	for _, name := range names {
		text := getenv(name + Suffix)
		if text == "" {
			continue
		}
		ref, err := parse(text)
		for _, other := range []string{name, name + "_FILE"} {
			if getenv(other) != "" {
				err = fmt.Errorf("set as well as %s: want one of them", other)
			}
		}
		if err != nil {
			wrong[name] = err
			continue
		}
		refs[name] = ref
		wanted[ref.source] = &answer{}
	}
	if len(wanted) > 0 {
		fetch(ctx, wanted, connect)
	}
	values := map[string]string{}
	var errs []error
	for _, name := range names {
		err := wrong[name]
		if ref, ok := refs[name]; ok {
			values[name], err = ref.pick(*wanted[ref.source])
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s%s: %w", name, Suffix, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return func(name string) string {
		if v, ok := values[name]; ok {
			return v
		}
		return getenv(name)
	}, nil
}

// source is one thing to ask for.
type source struct{ service, id string }

func (s source) String() string { return s.service + ":" + s.id }

const secretsManager, parameterStore = "secretsmanager", "ssm"

// reference is a source and, if not "", the key of its JSON object.
type reference struct {
	source
	key string
}

// parse does not quote what it cannot read: it may be a secret in the wrong variable.
func parse(text string) (reference, error) {
	service, id, _ := strings.Cut(text, ":")
	id, key, keyed := strings.Cut(id, "#")
	secret := service == secretsManager && (!keyed || key != "")
	parameter := service == parameterStore && !keyed
	if id == "" || !secret && !parameter {
		return reference{}, errors.New("not a reference: want secretsmanager:<name or ARN>, with #<key> for a key of a JSON object, or ssm:<name or ARN>")
	}
	return reference{source{service, id}, key}, nil
}

type answer struct {
	text string
	err  error
}

// fetch asks for everything at once, so that one that hangs takes no other's time.
func fetch(ctx context.Context, wanted map[source]*answer, connect func(context.Context) (Clients, error)) {
	clients, err := connect(ctx)
	var asking sync.WaitGroup
	for s, a := range wanted {
		if err != nil {
			a.err = err
			continue
		}
		asking.Go(func() { a.text, a.err = clients.ask(ctx, s) })
	}
	asking.Wait()
}

func (c Clients) ask(ctx context.Context, s source) (string, error) {
	if s.service == parameterStore {
		out, err := c.ParameterStore.GetParameter(ctx, &ssm.GetParameterInput{Name: &s.id, WithDecryption: aws.Bool(true)})
		if err != nil {
			return "", err
		}
		if out.Parameter == nil {
			return "", errors.New("the answer holds no parameter")
		}
		return aws.ToString(out.Parameter.Value), nil
	}
	out, err := c.SecretsManager.GetSecretValue(ctx, &secretsmanager.GetSecretValueInput{SecretId: &s.id})
	if err != nil {
		return "", err
	}
	if out.SecretString == nil {
		return "", errors.New("the secret is binary: want text")
	}
	return *out.SecretString, nil
}

// pick is the value, without the last line's end, as a file's is read. What a decoder
// says of a secret quotes it, and is not told.
func (r reference) pick(a answer) (string, error) {
	if a.err != nil {
		return "", fmt.Errorf("%s: %w", r.source, a.err)
	}
	text := a.text
	if r.key != "" {
		var object map[string]any
		if json.Unmarshal([]byte(text), &object) != nil {
			return "", fmt.Errorf("%s: not a JSON object, and key %q is asked for", r.source, r.key)
		}
		var ok bool
		if text, ok = object[r.key].(string); !ok {
			return "", fmt.Errorf("%s: key %q: want text, and it is absent or something else", r.source, r.key)
		}
	}
	if text = strings.TrimRight(text, "\r\n"); text == "" {
		return "", fmt.Errorf("%s: the value is empty", r.source)
	}
	return text, nil
}
