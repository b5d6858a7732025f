# Writes what `sluice manual KIND` prints into OUT, a man page compressed. Names: PROGRAM, KIND, OUT, GZIP.
if(OUT MATCHES "\\.gz$")
  execute_process(COMMAND ${PROGRAM} manual ${KIND} COMMAND ${GZIP} -9n OUTPUT_FILE ${OUT} COMMAND_ERROR_IS_FATAL ANY)
else()
  execute_process(COMMAND ${PROGRAM} manual ${KIND} OUTPUT_FILE ${OUT} COMMAND_ERROR_IS_FATAL ANY)
endif()
