# Thin front of CMake. `make` leaves build/sluice; `make demo` and `make test` are the two commands of
# the README and install what they need.
.PHONY: all check-quick clean format
J ?= 2

all: build/build.ninja
	@cmake --build build -j$(J)

build/build.ninja: CMakeLists.txt tests/CMakeLists.txt CMakePresets.json
	@cmake --preset release

check-quick: all
	@cd build && ctest -j$(J) --output-on-failure -R '^(unit|fuzz|house)\.' --timeout 120

format:
	@git ls-files '*.c' '*.h' | xargs clang-format -i

clean:
	rm -rf build build-*
