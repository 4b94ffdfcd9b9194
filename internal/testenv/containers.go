//go:build containers

package testenv

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/network"
	"github.com/testcontainers/testcontainers-go/wait"
	"go.yaml.in/yaml/v4"
)

// This file is for a machine with a container engine and nothing else installed:
//
//	go test -tags containers -run InContainer ./internal/testenv
//
// It has not been run where it was written, for there is no engine there; it is only
// known to compile. The servers are those of the other functions here, from the images
// that docker-compose.yml names. They cannot be frozen or killed, so what tests that is
// left to real processes. Without an engine the test fails: who sets the tag has one.

// containerWithin bounds the start of a container with the download of its image.
const containerWithin = 3 * time.Minute

// RedisContainers are the addresses, host:port, of a primary and its replica.
type RedisContainers struct{ Primary, Replica string }

// PairInContainers is Pair in containers: a primary and one replica that is online,
// whole or empty, on any loopback ports. They end with the test.
func PairInContainers(t testing.TB) RedisContainers {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), containerWithin)
	defer cancel()
	link, err := network.New(ctx)
	testcontainers.CleanupNetwork(t, link)
	if err != nil {
		t.Fatalf("create a network between primary and replica: %v", err)
	}
	const port = "6379"
	server := func(name string, ready wait.Strategy, more ...string) string {
		return runContainer(t, "redis-primary", port, "",
			testcontainers.WithFiles(testcontainers.ContainerFile{
				HostFilePath: fromRoot(t, "build", "redis.conf"), ContainerFilePath: "/etc/redis.conf", FileMode: 0o444,
			}),
			testcontainers.WithCmd(append([]string{"valkey-server", "/etc/redis.conf", "--protected-mode", "no"}, more...)...),
			network.WithNetwork([]string{name}, link),
			testcontainers.WithWaitStrategy(wait.ForListeningPort(port+"/tcp"), ready),
		)
	}
	says := func(what string) wait.Strategy {
		return wait.ForExec([]string{"sh", "-c", "valkey-cli info replication | grep -q " + what})
	}
	return RedisContainers{
		Primary: server("primary", says("role:master")),
		Replica: server("replica", says("master_link_status:up"), "--replicaof", "primary", port),
	}
}

// AWSInContainer is AWS in a container: the base URL of an empty emulator, the same for
// every service. It ends with the test.
func AWSInContainer(t testing.TB) (endpoint string) {
	t.Helper()
	return runContainer(t, "aws", "5000", "http", testcontainers.WithWaitStrategy(wait.ForHTTP("/moto-api/data.json").WithPort("5000/tcp")))
}

// PostgresInContainer is Postgres in a container: the connection string of an empty
// database on a server of its own. It ends with the test.
func PostgresInContainer(t testing.TB) (url string) {
	t.Helper()
	addr := runContainer(t, "postgres", "5432", "",
		testcontainers.WithEnv(map[string]string{"POSTGRES_HOST_AUTH_METHOD": "trust"}), // it is on loopback, for a test's length
		// Once for the server that only initialises, and once for the real one.
		testcontainers.WithWaitStrategy(
			wait.ForLog("database system is ready to accept connections").WithOccurrence(2),
			wait.ForListeningPort("5432/tcp"),
		),
	)
	return "postgres://postgres@" + addr + "/postgres?sslmode=disable"
}

// runContainer starts the image of a service of docker-compose.yml and returns where
// its port is reached from here, as scheme://host:port, or host:port without a scheme.
func runContainer(t testing.TB, service, port, scheme string, o ...testcontainers.ContainerCustomizer) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), containerWithin)
	defer cancel()
	c, err := testcontainers.Run(ctx, composeImage(t, service), append(o, testcontainers.WithExposedPorts(port+"/tcp"))...)
	testcontainers.CleanupContainer(t, c)
	if err != nil {
		t.Fatalf("start %s in a container: %v", service, err)
	}
	addr, err := c.PortEndpoint(ctx, port+"/tcp", scheme)
	if err != nil {
		t.Fatalf("address of %s in its container: %v", service, err)
	}
	return addr
}

// composeImage is the image that docker-compose.yml pins for a service.
func composeImage(t testing.TB, service string) string {
	t.Helper()
	text, err := os.ReadFile(fromRoot(t, "docker-compose.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Image string `yaml:"image"`
		} `yaml:"services"`
	}
	if err := yaml.Load(text, &file); err != nil {
		t.Fatalf("docker-compose.yml: %v", err)
	}
	image := file.Services[service].Image
	if image == "" {
		t.Fatalf("docker-compose.yml: service %s has no image", service)
	}
	return image
}

func fromRoot(t testing.TB, path ...string) string {
	t.Helper()
	root, ok := moduleRoot()
	if !ok {
		t.Fatal("the working folder is not inside the module")
	}
	return filepath.Join(append([]string{root}, path...)...)
}
